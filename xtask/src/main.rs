//! Project chores. `cargo run -p xtask` checks the rules of the house; `cargo test` does the same.

mod circles;
mod pages;
mod tidy;

fn main() {
    let root = tidy::root();
    let mut problems = tidy::check(&root);
    problems.extend(pages::check(&root));
    for problem in &problems {
        eprintln!("{problem}");
    }
    std::process::exit(i32::from(!problems.is_empty()));
}
