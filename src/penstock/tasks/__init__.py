"""What users of tasks hold: `App`, `@app.task`, jobs, workflows and schedules. It knows a session, like `client/`."""
