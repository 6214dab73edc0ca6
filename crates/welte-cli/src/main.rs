//! The `welte` binary.

fn main() -> std::process::ExitCode {
    welte_cli::main(std::env::args_os())
}
