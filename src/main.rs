//! The `penstock` program: hands over to the command line, and ends with its exit code.

use std::process::ExitCode;

// Many short-lived buffers on many threads: the system's allocator costs more per request.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    penstock::cli::run()
}
