"""A web service with FastAPI that leaves its slow work to tasks."""
