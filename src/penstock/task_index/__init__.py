"""The catalogue of tasks: what has become of each, as a view of the journal that can be searched."""

from penstock.task_index.index import Catalogue

__all__ = ["Catalogue"]
