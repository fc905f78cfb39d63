"""The WebSocket `/api/v1/stream`: `start_http(…, stream=WebSockets(broker).serve)`."""
