//! The samples of several series, bounded, and their means over a range.

use meshd_types::{ParseError, Timestamp};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Seconds of a minute.
pub const MINUTE: u64 = 60;
/// Seconds of an hour.
pub const HOUR: u64 = 3600;
/// Maximum number of points of one answer: 90 days by the hour.
pub const MAX_POINTS: u64 = 2160;
/// Samples of minutes: one day.
const MAX_MINUTES: usize = 1440;
/// Means of hours: 90 days.
const MAX_HOURS: usize = 2160;
/// Maximum seconds between two points of an answer.
const MAX_STEP: u64 = 24 * HOUR;

/// The interval of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesStep {
    Minute,
    Hour,
}

/// The values of all series in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    /// First second of the interval, since the epoch.
    pub start: u64,
    /// One value for each series; `None` if it is unknown.
    pub values: Vec<Option<f64>>,
}

/// The mean of a series in one interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesPoint {
    /// Begin of the interval.
    pub at: Timestamp,
    pub value: f64,
}

/// A range of time, and the interval of its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesRange {
    from: u64,
    to: u64,
    step: u64,
}

impl SeriesRange {
    /// Checks a range. Without a step, minutes are used for up to a day, then hours.
    ///
    /// # Errors
    /// If the range is empty, the step is no number of minutes, or the answer would be too long.
    pub fn new(from: Timestamp, to: Timestamp, step: Option<u64>) -> Result<Self, ParseError> {
        let [from, to] = [from, to].map(|at| u64::try_from(at.seconds()).unwrap_or(0));
        let Some(length) = to.checked_sub(from).filter(|length| *length > 0) else {
            return Err(ParseError::new("the range is empty", "give a begin before the end"));
        };
        let step = step.unwrap_or(if length <= MAX_STEP { MINUTE } else { HOUR });
        if step == 0 || !step.is_multiple_of(MINUTE) || step > MAX_STEP {
            let message = format!("a step of {step} s is out of range");
            return Err(ParseError::new(message, "use a multiple of 60, at most 86400"));
        }
        if length / step > MAX_POINTS {
            let message = format!("{} points are too many", length / step);
            let hint = format!("at most {MAX_POINTS}: use a larger step or a shorter range");
            return Err(ParseError::new(message, hint));
        }
        Ok(SeriesRange { from, to, step })
    }

    /// Seconds between two points.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns true if an interval has a part of the range.
    pub fn overlaps(&self, start: u64, length: u64) -> bool {
        start <= self.to && start.saturating_add(length) > self.from - self.from % self.step
    }

    /// The first interval may begin before the range.
    fn contains(&self, start: u64) -> bool {
        start >= self.from - self.from % self.step && start <= self.to
    }
}

/// The newest samples of several series.
#[derive(Clone, Debug, Default)]
pub struct SeriesHistory {
    /// In the order in which they were added.
    minutes: VecDeque<SampleRow>,
    hours: VecDeque<SampleRow>,
}

impl SeriesHistory {
    /// Adds the sample of the minute of `at`. A second sample of the same minute replaces the
    /// first. Returns the rows that a file needs: the mean of the hour that ended, and the sample.
    pub fn record(
        &mut self,
        at: Timestamp,
        values: Vec<Option<f64>>,
    ) -> Vec<(SeriesStep, SampleRow)> {
        let seconds = u64::try_from(at.seconds()).unwrap_or(0);
        let row = SampleRow { start: seconds - seconds % MINUTE, values };
        let mut rows = Vec::new();
        if let Some(hour) = self.ended_hour(row.start) {
            self.restore(SeriesStep::Hour, hour.clone());
            rows.push((SeriesStep::Hour, hour));
        }
        self.restore(SeriesStep::Minute, row.clone());
        rows.push((SeriesStep::Minute, row));
        rows
    }

    /// Adds a row of a file.
    pub fn restore(&mut self, step: SeriesStep, row: SampleRow) {
        let (rows, most) = match step {
            SeriesStep::Minute => (&mut self.minutes, MAX_MINUTES),
            SeriesStep::Hour => (&mut self.hours, MAX_HOURS),
        };
        if rows.back().is_some_and(|last| last.start == row.start) {
            rows.pop_back();
        }
        rows.push_back(row);
        if rows.len() > most {
            rows.pop_front();
        }
    }

    /// The mean of the hour of the newest sample, unless `next` is in that hour.
    fn ended_hour(&self, next: u64) -> Option<SampleRow> {
        let start = start_of_hour(self.minutes.back()?.start);
        if start == start_of_hour(next) {
            return None;
        }
        let rows = self.minutes.iter().rev();
        let rows: Vec<_> =
            rows.take_while(|row| start_of_hour(row.start) == start).take(60).collect();
        let width = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
        let value = |series: usize| {
            mean(rows.iter().filter_map(|row| row.values.get(series).copied().flatten()))
        };
        Some(SampleRow { start, values: (0..width).map(value).collect() })
    }

    /// All rows, the oldest first.
    pub fn rows(&self) -> impl Iterator<Item = (SeriesStep, &SampleRow)> {
        let hours = self.hours.iter().map(|row| (SeriesStep::Hour, row));
        hours.chain(self.minutes.iter().map(|row| (SeriesStep::Minute, row)))
    }

    /// The begin of the newest sample, in seconds since the epoch.
    pub fn newest_start(&self) -> Option<u64> {
        self.minutes.back().map(|row| row.start)
    }

    /// The newest sample of a series.
    pub fn newest(&self, series: usize) -> Option<SeriesPoint> {
        let row = self.minutes.back()?;
        let value = row.values.get(series).copied().flatten()?;
        Some(SeriesPoint { at: timestamp(row.start), value })
    }

    /// Returns the means of a series, one for each step with a sample.
    pub fn read(&self, series: usize, range: &SeriesRange) -> Vec<SeriesPoint> {
        let values = |rows: &VecDeque<SampleRow>| {
            let values = rows
                .iter()
                .filter_map(|row| Some((row.start, row.values.get(series).copied().flatten()?)));
            // A later sample of the same time replaces an earlier one.
            values.collect::<BTreeMap<u64, f64>>()
        };
        points(&values(&self.minutes), &values(&self.hours), range)
    }
}

/// Returns the means of samples, one for each step with a sample. Hours without a mean have that of
/// their minutes.
pub fn points(
    minutes: &BTreeMap<u64, f64>,
    hours: &BTreeMap<u64, f64>,
    range: &SeriesRange,
) -> Vec<SeriesPoint> {
    let inside = |values: &BTreeMap<u64, f64>| {
        let values = values.iter().filter(|(start, _)| range.contains(**start));
        values.map(|(start, value)| (*start, *value)).collect::<BTreeMap<_, _>>()
    };
    let mut samples = inside(minutes);
    if range.step >= HOUR {
        samples = means(&samples, HOUR);
        samples.extend(inside(hours));
    }
    let points = means(&samples, range.step).into_iter();
    points.map(|(start, value)| SeriesPoint { at: timestamp(start), value }).collect()
}

fn start_of_hour(start: u64) -> u64 {
    start - start % HOUR
}

fn timestamp(start: u64) -> Timestamp {
    Timestamp::EPOCH.after(Duration::from_secs(start))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// The mean of each interval with a sample.
fn means(samples: &BTreeMap<u64, f64>, step: u64) -> BTreeMap<u64, f64> {
    let mut sums: BTreeMap<u64, (f64, u32)> = BTreeMap::new();
    for (start, value) in samples {
        let (sum, count) = sums.entry(start - start % step).or_default();
        *sum += value;
        *count += 1;
    }
    sums.into_iter().map(|(start, (sum, count))| (start, sum / f64::from(count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Timestamp {
        timestamp(seconds)
    }

    fn read(history: &SeriesHistory, from: u64, to: u64, step: u64) -> Vec<(i64, f64)> {
        let range = SeriesRange::new(at(from), at(to), Some(step)).expect("a range");
        let points = history.read(0, &range);
        points.iter().map(|point| (point.at.seconds(), point.value)).collect()
    }

    #[test]
    fn samples_of_an_hour_become_its_mean() {
        let mut history = SeriesHistory::default();
        for minute in 0..60 {
            let rows = history.record(at(minute * 60 + 7), vec![Some(minute as f64), None]);
            assert_eq!(rows.len(), 1, "the hour runs");
        }
        assert_eq!(read(&history, 0, 3600, 3600), [(0, 29.5)], "the hour that runs has a mean");
        let rows = history.record(at(3600), vec![Some(5.0), None]);
        let hour = SampleRow { start: 0, values: vec![Some(29.5), None] };
        assert_eq!(rows[0], (SeriesStep::Hour, hour));
        assert_eq!(read(&history, 0, 7200, 3600), [(0, 29.5), (3600, 5.0)]);
        assert_eq!(read(&history, 60, 190, 120), [(0, 0.5), (120, 2.5)]);
        assert_eq!(history.newest(0).map(|point| point.value), Some(5.0));
        assert_eq!(history.newest(1), None);
    }

    #[test]
    fn sample_of_the_same_minute_replaces_the_earlier_one() {
        let mut history = SeriesHistory::default();
        history.record(at(120), vec![Some(1.0)]);
        history.record(at(179), vec![Some(3.0)]);
        assert_eq!(history.rows().count(), 1);
        assert_eq!(read(&history, 0, 600, 60), [(120, 3.0)]);
    }

    #[test]
    fn clock_that_jumps_years_ahead_and_back_loses_no_sample() {
        let mut history = SeriesHistory::default();
        let now = 1_700_000_400;
        (0..10).for_each(|minute| drop(history.record(at(now + minute * 60), vec![Some(1.0)])));
        // 30 years ahead for two minutes, then 1970, then right again.
        for wrong in [now + 946_080_000, now + 946_080_060, 0, 60] {
            history.record(at(wrong), vec![Some(9.0)]);
        }
        (10..20).for_each(|minute| drop(history.record(at(now + minute * 60), vec![Some(1.0)])));
        let points = read(&history, now - 3600, now + 3600, 60);
        assert_eq!(points.len(), 20, "no gap is filled, and nothing is lost: {points:?}");
        assert!(points.iter().all(|(_, value)| *value == 1.0));
    }

    #[test]
    fn range_with_too_many_points_is_refused() {
        let day = SeriesRange::new(at(0), at(86_400), None).expect("a day");
        assert_eq!(day.step(), 60);
        let quarter = SeriesRange::new(at(0), at(90 * 86_400), None).expect("90 days");
        assert_eq!(quarter.step(), 3600);
        for (from, to, step) in [
            (5, 5, None),
            (9, 5, None),
            (0, 60, Some(0)),
            (0, 60, Some(61)),
            (0, 60, Some(86_460)),
            (0, 90 * 86_400, Some(60)),
            (0, u64::MAX / 2_000_000, None),
        ] {
            let refused = SeriesRange::new(at(from), at(to), step);
            assert!(refused.is_err(), "{from} {to} {step:?}");
        }
    }

    proptest! {
        #[test]
        fn any_clock_leaves_history_bounded_and_reads_within_range(
            times in prop::collection::vec(prop_oneof![0..4_000_000_000_u64, 0..20_000_u64], 1..400),
            start in 0..20_000_u64,
        ) {
            let mut history = SeriesHistory::default();
            for seconds in &times {
                let rows = history.record(at(*seconds), vec![Some(1.0)]);
                prop_assert!(rows.len() <= 2);
            }
            prop_assert!(history.rows().count() <= MAX_MINUTES + MAX_HOURS);
            let range = SeriesRange::new(at(start), at(start + 7200), Some(60)).expect("a range");
            let points = history.read(0, &range);
            prop_assert!(points.len() as u64 <= 7200 / 60 + 2);
            prop_assert!(points.iter().all(|point| point.value == 1.0));
        }

        #[test]
        fn steady_samples_are_kept_for_a_day_and_hours_for_90_days(minutes in 1440..1600_u64) {
            let mut history = SeriesHistory::default();
            for minute in 0..minutes {
                history.record(at(minute * 60), vec![Some(minute as f64)]);
            }
            let range = SeriesRange::new(at(0), at(minutes * 60), Some(60)).expect("a range");
            prop_assert_eq!(history.read(0, &range).len(), MAX_MINUTES);
            let range = SeriesRange::new(at(0), at(minutes * 60), Some(3600)).expect("a range");
            let hours = history.read(0, &range);
            prop_assert_eq!(hours.len() as u64, minutes.div_ceil(60), "the first hours are means");
        }
    }
}
