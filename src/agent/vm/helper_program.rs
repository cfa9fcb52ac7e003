//! Runs a helper program (`ip`, `qemu-img`, `swtpm`) to its end.

use std::{path::Path, process::Stdio, time::Duration};

/// Timeout of a helper program.
const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// Error output of a program that is repeated in an error, in characters.
const MAX_STDERR: usize = 400;

/// Runs a program to its end.
///
/// # Errors
/// The program cannot be run, exits with an error (repeated with its error output) or exceeds [`TOOL_TIMEOUT`].
pub async fn run(program: &Path, args: &[String]) -> Result<(), String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let name = program.display();
    let ended = match tokio::time::timeout(TOOL_TIMEOUT, command.output()).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => return Err(format!("{name} cannot be run: {error}")),
        Err(_) => return Err(format!("{name} took more than {} s", TOOL_TIMEOUT.as_secs())),
    };
    if ended.status.success() {
        return Ok(());
    }
    let stderr: String = String::from_utf8_lossy(&ended.stderr).trim().chars().take(MAX_STDERR).collect();
    Err(format!("{name} {}: {}: {stderr}", args.join(" "), ended.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failing_tool_reports_its_error_output() {
        assert_eq!(run(Path::new("/bin/true"), &[]).await, Ok(()));
        let failed = run(Path::new("/bin/ls"), &["/no/such/place".to_owned()]).await;
        assert!(failed.is_err_and(|why| why.contains("/no/such/place") && why.contains("ls")));
        assert!(run(Path::new("/no/such/program"), &[]).await.is_err_and(|why| why.contains("cannot be run")));
    }
}
