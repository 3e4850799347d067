//! penstock
fn main() {}
