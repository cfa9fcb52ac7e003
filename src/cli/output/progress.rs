//! Shows the progress of builds: moving lines on a terminal, plain lines in a log.

use super::{clean::clean, print::span};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use meshd_builder::{BuildStep, Progress};
use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Interval between two redraws of a progress line.
const TICK: Duration = Duration::from_millis(120);

/// Draws progress on standard error.
pub(crate) struct Drawing {
    /// `None` if standard error is not a terminal.
    bars: Option<MultiProgress>,
    moving: Mutex<BTreeMap<BuildStep, ProgressBar>>,
}

impl Drawing {
    pub(crate) fn new() -> Self {
        let bars = std::io::stderr()
            .is_terminal()
            .then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Drawing { bars, moving: Mutex::default() }
    }

    fn with_bar(&self, step: BuildStep, change: impl FnOnce(&ProgressBar)) {
        let moving = self.moving.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = moving.get(&step) {
            change(bar);
        }
    }
}

impl Progress for Drawing {
    fn begin(&self, step: BuildStep) {
        let Some(bars) = &self.bars else {
            message!("{step:<16} begins");
            return;
        };
        let style = ProgressStyle::with_template("{spinner} {prefix:<16} {elapsed:>4}  {wide_msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_spinner());
        let bar =
            bars.add(ProgressBar::new_spinner().with_style(style).with_prefix(step.to_string()));
        bar.enable_steady_tick(TICK);
        self.moving.lock().unwrap_or_else(PoisonError::into_inner).insert(step, bar);
    }

    fn note(&self, step: BuildStep, text: &str) {
        match &self.bars {
            Some(_) => self.with_bar(step, |bar| bar.set_message(clean(text))),
            None => message!("{step:<16} {text}"),
        }
    }

    fn end(&self, step: BuildStep, took: Duration) {
        match &self.bars {
            Some(_) => self
                .with_bar(step, |bar| bar.finish_with_message(format!("done in {}", span(took)))),
            None => message!("{step:<16} done in {}", span(took)),
        }
    }
}
