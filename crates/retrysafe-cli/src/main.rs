//! Where does the program begin?

use std::process::ExitCode;

/// What one thread asks for, the store's thread frees, and the other way round. This allocator is made
/// for that; the system's is not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    retrysafe_cli::main()
}
