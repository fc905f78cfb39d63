"""The broker's listeners: TCP, HTTP with WebSocket, gRPC. Thin shells over `broker`; `serve` runs them together."""
