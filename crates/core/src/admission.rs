//! Admission: decides which requests may go on, with data structures that take the time as an
//! argument. The proxy consults them before it routes a request.

pub mod budgets;
pub mod queue;
pub mod rate_limits;
pub mod returns;
