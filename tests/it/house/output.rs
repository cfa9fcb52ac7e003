//! Commands print only through the writer of `src/cli/output`, which filters foreign text and
//! survives closed streams.

use super::{code, is_tests, programs};

/// Macros and functions that bypass the writer.
const BYPASSES: [&str; 6] =
    ["eprint!(", "eprintln!(", "print!(", "println!(", "stderr()", "stdout()"];

fn bypasses(line: &str) -> bool {
    let line = line.replace("stdout().is_terminal()", "").replace("stderr().is_terminal()", "");
    BYPASSES.iter().any(|way| line.contains(way))
}

#[test]
fn command_that_bypasses_the_output_writer_is_refused() {
    assert!(bypasses("eprintln!(\"{name}\")") && bypasses("let mut out = io::stdout().lock();"));
    assert!(!bypasses("if io::stdout().is_terminal() { message!(\"{name}\") }"));
    let files = programs("src/cli")
        .into_iter()
        .filter(|(path, _)| !path.starts_with("src/cli/output") && !is_tests(path));
    let faults: Vec<String> = files
        .flat_map(|(path, text)| {
            let lines: Vec<String> =
                code(&text).filter(|line| bypasses(line)).map(str::to_owned).collect();
            lines.into_iter().map(move |line| format!("{}: {line}", path.display()))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "use `message!` or src/cli/output/writer.rs:\n{}",
        faults.join("\n")
    );
}
