"""The faces for threads: generated from `_async` by `make generate`; do not edit."""
