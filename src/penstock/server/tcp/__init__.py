"""The TCP protocol of the SDK: batches as they are stored, requests pipelined."""

from penstock.server.tcp.listener import TcpServer, start_tcp

__all__ = ["TcpServer", "start_tcp"]
