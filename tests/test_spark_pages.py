"""Pages about Spark: their code is run in a process of its own, with a Spark that starts in the directory of the page.

CI runs the recipes; the other pages, whose subjects tests/spark covers, are run at night.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.doc_page import ROOT
from tests.support.dose import dose

DOCS = ROOT / "docs"
RECIPES = DOCS / "guides" / "spark-recipes.md"
SPARK_PAGES = [RECIPES, *(DOCS / f"{name}.md" for name in ("spark", "spark-sink", "spark-streaming", "sql", "streams"))]


@pytest.mark.parametrize("page", dose([RECIPES], SPARK_PAGES), ids=lambda page: page.stem)
def test_the_code_of_a_page_about_spark_runs(page, tmp_path):
    variables = os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    words = [sys.executable, "-m", "tests.support.doc_page", str(page)]
    done = subprocess.run(words, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
