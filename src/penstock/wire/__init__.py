"""What crosses the network, as bytes and as typed values. Shared by server and client; nothing here does I/O."""
