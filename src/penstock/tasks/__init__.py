"""The API for tasks: `App`, `@app.task`, jobs, workflows and schedules. It uses a session, like `client/`."""
