//! The only writer of the command line. Removes what a terminal would execute from every text.
//!
//! Names, messages and output come from nodes, guests and other machines. Only [`write_raw`] and
//! [`ForeignOutput`] with `--raw` write bytes unchanged. A house test refuses other writers in
//! `src/cli`. Messages are best effort: a closed or full standard error ends no command. Data is
//! not: a failed write to standard output is a [`Failure`].

use super::{
    clean::{clean, clean_lines},
    failure::Failure,
    given_options::with_given_options,
    text_filter::TextFilter,
};
use clap::Args;
use meshd_types::{LogLines, failpoint};
use std::io::{self, IsTerminal as _, Stderr, Stdout, Write, stderr, stdout};

/// Writes one message to standard error, as `eprintln!` does, without control characters.
macro_rules! message {
    ($($text:tt)*) => {
        $crate::cli::output::writer::write_message(&format!("{}\n", format_args!($($text)*)))
    };
}

/// Writes text to standard output, without control characters.
pub(crate) fn write(text: &str) -> Result<(), Failure> {
    write_raw(clean_lines(text).as_bytes())
}

/// Writes bytes to standard output unchanged. Only for text of this program.
pub(crate) fn write_raw(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = stdout().lock();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Standard output without a filter, for a program that draws on the terminal or owns it.
pub(crate) fn raw_output() -> Stdout {
    stdout()
}

/// Output of the log: standard error, with one line for each event.
pub(crate) fn log_output() -> LogLines<Stderr> {
    LogLines(stderr())
}

/// Writes text to standard error, without control characters and without a line end. Its commands
/// have the options of the caller.
pub(crate) fn write_message(text: &str) {
    write_message_raw(clean_lines(&with_given_options(text)).as_bytes());
}

/// Writes over the current line of standard error.
pub(crate) fn write_over(text: &str) {
    write_message_raw(format!("\r{}", clean(text)).as_bytes());
}

/// A closed standard error must not end the command: nobody reads its messages.
fn write_message_raw(bytes: &[u8]) {
    let mut out = stderr().lock();
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

/// Option of commands that print the output of a node or guest.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct RawOutput {
    /// Print escape sequences and binary data unchanged
    #[arg(long)]
    raw: bool,
}

/// Standard output and standard error of a program elsewhere.
pub(crate) struct ForeignOutput {
    is_raw: bool,
    out: TextFilter,
    err: TextFilter,
}

impl ForeignOutput {
    pub(crate) fn new(option: RawOutput) -> Self {
        let is_raw = option.raw || !failpoint::defends("cli-filter");
        ForeignOutput { is_raw, out: TextFilter::default(), err: TextFilter::default() }
    }

    /// Creates the output of a guest that has the user's terminal.
    pub(crate) fn of_terminal() -> Self {
        ForeignOutput::new(RawOutput { raw: true })
    }

    /// Writes a piece of its standard output.
    pub(crate) fn out(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.write_all(piece)?;
        Ok(self.flush()?)
    }

    /// Writes a piece of its standard error.
    pub(crate) fn err(&mut self, piece: &[u8]) {
        if self.is_raw {
            write_message_raw(piece)
        } else {
            write_message_raw(self.err.next(piece).as_bytes())
        }
    }

    /// Reports that a file or pipe received other bytes than the program wrote. A terminal shows
    /// the replacements.
    pub(crate) fn end(self) {
        if self.out.is_changed() && !stdout().is_terminal() {
            message!(
                "meshd: control characters were removed from the output\n  hint: --raw prints every byte unchanged"
            );
        }
    }
}

/// Writes its standard output.
impl Write for ForeignOutput {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let text = (!self.is_raw).then(|| self.out.next(piece));
        stdout().write_all(text.as_deref().map_or(piece, str::as_bytes))?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        stdout().flush()
    }
}
