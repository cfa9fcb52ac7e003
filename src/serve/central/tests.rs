//! The chain through central, without a socket.
