//! Images: imported from a mirror that is laid out like Alpine's, and their versions under
//! `kill -9`.

mod imported;
mod killed;
mod mirror;
