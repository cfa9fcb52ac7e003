//! The admin plane: what the CLI asks, over a Unix socket.
