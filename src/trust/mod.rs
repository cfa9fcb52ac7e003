//! Step 2, trust: tokens, capabilities and certificates: who may have what.
pub mod token;
pub use token::TokenRecord;
