//! Runs a helper program (`qemu-img`, `swtpm`) to its end.

use std::{path::Path, process::Stdio, time::Duration};

const TOOL_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of the error output in an error, in characters.
const MAX_STDERR: usize = 400;

/// Runs a program with a timeout of [`TOOL_TIMEOUT`]. An error contains the error output of the
/// program.
pub async fn run(program: &Path, args: &[String]) -> Result<(), String> {
    let mut command = tokio::process::Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let name = program.display();
    let output = match tokio::time::timeout(TOOL_TIMEOUT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot run {name}: {error}")),
        Err(_) => return Err(format!("{name} took more than {} s", TOOL_TIMEOUT.as_secs())),
    };
    if output.status.success() {
        return Ok(());
    }
    let stderr: String =
        String::from_utf8_lossy(&output.stderr).trim().chars().take(MAX_STDERR).collect();
    Err(format!("{name} {}: {}: {stderr}", args.join(" "), output.status))
}

pub fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failing_tool_reports_its_error_output() {
        assert_eq!(run(Path::new("/bin/true"), &[]).await, Ok(()));
        let failed = run(Path::new("/bin/ls"), &["/no/such/file".to_owned()]).await;
        assert!(failed.is_err_and(|error| error.contains("/no/such/file") && error.contains("ls")));
        assert!(
            run(Path::new("/no/such/program"), &[])
                .await
                .is_err_and(|error| error.contains("cannot run"))
        );
    }
}
