//! Serial over LAN: the serial port of a machine, by `ipmitool`. It works with pipes, without a
//! terminal.

use super::{command, run};
use crate::{
    Bmc,
    program::{self, Group},
    report::plain,
};
use bytes::Bytes;
use meshd_model::operations::BmcFailure;
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStderr, ChildStdin, ChildStdout},
    sync::mpsc,
    time::timeout,
};

/// The escape character of `ipmitool`: the one that leaves a console of meshd, so it is never sent.
const ESCAPE: u8 = 0x1d;
/// Time in which `ipmitool` gives the console back at the end.
const END_TIME: Duration = Duration::from_secs(5);
/// Maximum number of bytes of one piece of output.
const MAX_PIECE: usize = 4096;
/// Maximum number of bytes of a message.
const MAX_MESSAGE: u64 = 4096;

/// An open serial port. Ended when it is dropped.
pub struct SerialConsole {
    /// Kills `ipmitool` at the latest when this value is dropped.
    _group: Group,
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    messages: ChildStderr,
}

/// Opens the console. A request for the power state comes first: it alone tells a wrong password
/// from a BMC that does not answer.
pub(crate) async fn open(bmc: &Bmc) -> Result<SerialConsole, BmcFailure> {
    run(bmc, &["chassis", "power", "status"]).await?;
    let mut command = command(bmc, &["-e", "\u{1d}"], &["sol", "activate"])?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |cause: &str| BmcFailure::Failed(format!("ipmitool: {cause}"));
    let mut child = command
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&error.to_string()))?;
    let group = program::group_of(&child);
    let streams = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(input), Some(output), Some(messages)) = streams else {
        return Err(failed("it has no pipes"));
    };
    Ok(SerialConsole { _group: group, child, input, output, messages })
}

/// Ends the session of the console, whoever has it. The BMC refuses if there is none.
pub(crate) async fn end(bmc: &Bmc) -> Result<(), BmcFailure> {
    run(bmc, &["sol", "deactivate"]).await.map(drop)
}

impl SerialConsole {
    /// Carries bytes in both directions until `input` or the console ends, or the reader of
    /// `output` is gone. `typed` has the bytes of a piece of input, `piece` makes a piece of output. Returns why the BMC ended the console.
    pub async fn carry<I: Send, T: Send>(
        self,
        mut input: mpsc::Receiver<I>,
        output: &mpsc::Sender<T>,
        typed: fn(I) -> Bytes,
        piece: fn(Bytes) -> T,
    ) -> Option<String> {
        let SerialConsole { _group, mut child, input: mut stdin, output: mut stdout, messages } =
            self;
        let typing = async {
            while let Some(input) = input.recv().await {
                let bytes: Vec<u8> =
                    typed(input).iter().copied().filter(|byte| *byte != ESCAPE).collect();
                if stdin.write_all(&bytes).await.is_err() {
                    break;
                }
            }
        };
        let showing = async {
            let mut bytes = vec![0; MAX_PIECE];
            while let Ok(length @ 1..) = stdout.read(&mut bytes).await {
                let shown = piece(Bytes::copy_from_slice(&bytes[..length]));
                if output.send(shown).await.is_err() {
                    return false;
                }
            }
            true
        };
        let has_ended = tokio::select! {
            () = typing => false,
            has_ended = showing => has_ended,
        };
        // At the end of its input, `ipmitool` gives the console back.
        drop(stdin);
        drop(stdout);
        let rest = async {
            let mut text = Vec::new();
            let read = messages.take(MAX_MESSAGE).read_to_end(&mut text).await;
            let _ = child.wait().await;
            read.map(|_| text)
        };
        let text = timeout(END_TIME, rest).await.ok()?.ok()?;
        let text = String::from_utf8_lossy(&text);
        // Without a terminal, it complains about that first.
        let is_cause = |line: &&str| !line.trim().is_empty() && !line.starts_with("tcgetattr");
        let cause = text.lines().rev().find(is_cause).map(plain);
        has_ended.then(|| cause.unwrap_or_else(|| "the BMC ended the console".to_owned()))
    }
}
