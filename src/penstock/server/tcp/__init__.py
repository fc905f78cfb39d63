"""The TCP protocol of the SDK: batches as they are stored, requests pipelined, streams with credit."""

from penstock.server.tcp.listener import TcpServer, start_tcp

__all__ = ["TcpServer", "start_tcp"]
