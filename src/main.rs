//! The `penstock` program: runs the command line and exits with its code.

use std::process::ExitCode;

// Many short-lived buffers on many threads: the system's allocator costs more per request.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    penstock::cli::run()
}
