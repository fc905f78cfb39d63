"""The table of operations: everything that can be requested besides push, lease and settle, declared once.

`base.py` says what a declaration holds; the others hold the declarations, and all of them have their names here.
"""

from penstock.operations.access import *
from penstock.operations.base import *
from penstock.operations.broker import *
from penstock.operations.bulk import *
from penstock.operations.groups import *
from penstock.operations.looks import *
from penstock.operations.messages import *
from penstock.operations.metrics import *
from penstock.operations.pipelines import *
from penstock.operations.queues import *
from penstock.operations.tasks import *
