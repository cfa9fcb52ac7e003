//! Filters of templates, with bounds on the texts that they build. minijinja's own build texts of
//! any size, which fuel does not count.

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Template, Value, escape_formatter, filters,
    functions, tests,
    value::{Rest, ValueKind},
};
use std::io;

/// Maximum size of a rendered file, in bytes.
pub(super) const MAX_RENDERED: usize = 4 << 20;
/// Maximum whole number that a filter takes to repeat something.
const MAX_REPEAT: i64 = 4096;
/// Maximum size of all values that one rendering writes, also into variables, in bytes.
const MAX_WRITTEN: usize = 4 * MAX_RENDERED;
/// Maximum number of elements of a range.
const MAX_RANGE: usize = 4096;
/// Maximum size of all values that the filters of one rendering read, in bytes.
const MAX_READ: usize = 256 << 20;
/// Name of the count of bytes that a rendering may still write.
const LEFT: &str = "left";
/// Name of the count of bytes that filters may still read.
const READ_LEFT: &str = "read left";
/// Size of a number or another small value as text, in bytes.
const LEAST: usize = 8;

/// Adds the filter `json`, and bounds to filters that read or repeat much.
pub(super) fn add(environment: &mut Environment<'static>) {
    environment.set_formatter(write_value);
    environment.add_function("range", range);
    let plain = [
        ("capitalize", Value::from_function(filters::capitalize)),
        ("chain", Value::from_function(filters::chain)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("groupby", Value::from_function(filters::groupby)),
        ("items", Value::from_function(filters::items)),
        ("join", Value::from_function(join)),
        ("json", Value::from_function(json)),
        ("lines", Value::from_function(filters::lines)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("pprint", Value::from_function(filters::pprint)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("sort", Value::from_function(filters::sort)),
        ("split", Value::from_function(filters::split)),
        ("string", Value::from_function(filters::string)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
        ("zip", Value::from_function(filters::zip)),
    ];
    plain.into_iter().for_each(|(name, filter)| add_bounded(environment, name, filter, |_| Ok(())));
    add_tests(environment);
    add_bounded(environment, "batch", Value::from_function(filters::batch), repeats_little);
    add_bounded(environment, "indent", Value::from_function(filters::indent), repeats_little);
    add_bounded(environment, "slice", Value::from_function(filters::slice), repeats_little);
    add_bounded(environment, "replace", Value::from_function(filters::replace), |args| {
        if let [Some(text), Some(from), Some(to)] =
            [0, 1, 2].map(|at| args.get(at).and_then(Value::as_str))
        {
            let size =
                text.matches(from).count().saturating_mul(to.len()).saturating_add(text.len());
            take(&mut MAX_RENDERED.clone(), size).ok_or_else(too_large)?;
        }
        Ok(())
    });
    add_bounded(environment, "format", Value::from_function(filters::format), |args| {
        let text = args.first().and_then(Value::as_str).unwrap_or_default();
        if text.contains('*')
            || text.split(|c: char| !c.is_ascii_digit()).any(|width| width.len() > 3)
        {
            return Err(filter_error("a width above 999".to_owned()));
        }
        Ok(())
    });
}

/// Adds the tests that read whole lists or texts: `select("in", list)` runs one for each element.
fn add_tests(environment: &mut Environment<'static>) {
    let all = [
        (&["eq", "equalto", "=="][..], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
    ];
    for (names, test) in all {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &State<'_, '_>, args: Rest<Value>| {
                count_read(state, &args)?;
                test.call(state, &args).map(|result| result.is_true())
            });
        }
    }
}

/// Counts what a filter or a test reads.
fn count_read(state: &State<'_, '_>, args: &[Value]) -> Result<(), Error> {
    let mut left = state.get_temp(READ_LEFT).and_then(|left| left.as_usize()).unwrap_or(MAX_READ);
    args.iter()
        .try_for_each(|arg| take_size(&mut left, arg))
        .ok_or_else(|| Error::from(ErrorKind::OutOfFuel))?;
    state.set_temp(READ_LEFT, Value::from(left));
    Ok(())
}

/// Adds a filter that runs after a check, and that counts the size of what it reads.
fn add_bounded(
    environment: &mut Environment<'static>,
    name: &'static str,
    filter: Value,
    check: fn(&[Value]) -> Result<(), Error>,
) {
    environment.add_filter(name, move |state: &State<'_, '_>, args: Rest<Value>| {
        check(&args)?;
        count_read(state, &args)?;
        filter.call(state, &args)
    });
}

fn repeats_little(args: &[Value]) -> Result<(), Error> {
    match args.iter().skip(1).flat_map(numbers).any(|number| number > MAX_REPEAT) {
        true => Err(filter_error(format!("a number above {MAX_REPEAT}"))),
        false => Ok(()),
    }
}

/// `range(from, to, step)`, with few elements.
fn range(from: isize, to: Option<isize>, step: Option<isize>) -> Result<Value, Error> {
    let range = functions::range(from, to, step)?;
    match range.try_iter()?.nth(MAX_RANGE) {
        Some(_) => Err(filter_error(format!("a range of more than {MAX_RANGE} elements"))),
        None => Ok(range),
    }
}

/// Renders a template into a bounded output.
pub(super) fn render(
    template: &Template<'_, '_>,
    values: &Value,
    out: impl io::Write,
) -> Result<(), Error> {
    template.render_captured_to(values, out).map(drop)
}

fn filter_error(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn too_large() -> Error {
    filter_error(format!("a text of more than {MAX_RENDERED} bytes"))
}

/// Returns the whole numbers of an argument, also of named ones.
fn numbers(value: &Value) -> Vec<i64> {
    let named = if value.is_kwargs() { value.try_iter().ok() } else { None };
    let named = named.into_iter().flatten().filter_map(|key| value.get_item(&key).ok()?.as_i64());
    value.as_i64().into_iter().chain(named).collect()
}

/// `value | json`: the value as JSON, with quotes.
fn json(value: &Value) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// `values | join(", ")`: the values as one text.
fn join(values: &Value, separator: Option<&str>) -> Result<String, Error> {
    let separator = separator.unwrap_or_default();
    let mut joined = String::new();
    let mut left = MAX_RENDERED;
    let characters = values
        .as_str()
        .map(|text| text.chars().map(|c| Value::from(c.to_string())).collect::<Value>());
    for (number, value) in characters.as_ref().unwrap_or(values).try_iter()?.enumerate() {
        let gap = if number > 0 { separator } else { "" };
        take(&mut left, gap.len())
            .and_then(|()| take_size(&mut left, &value))
            .ok_or_else(too_large)?;
        joined.push_str(gap);
        joined.push_str(&value.to_string());
    }
    Ok(joined)
}

/// Writes a value as minijinja does, and counts the bytes, because a captured block has no other
/// bound.
fn write_value(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    let mut left = state
        .get_temp(LEFT)
        .and_then(|left| left.as_usize())
        .unwrap_or(MAX_WRITTEN)
        .min(MAX_WRITTEN);
    let mut most = left.min(MAX_RENDERED);
    let before = most;
    take_size(&mut most, value).ok_or_else(|| Error::from(ErrorKind::WriteFailure))?;
    left -= before - most;
    state.set_temp(LEFT, Value::from(left));
    escape_formatter(out, state, value)
}

fn take(left: &mut usize, size: usize) -> Option<()> {
    *left = left.checked_sub(size)?;
    Some(())
}

/// Subtracts at least the size of a value as text. Lists are counted by their elements, because a
/// product may have any number of them.
fn take_size(left: &mut usize, value: &Value) -> Option<()> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => value.try_iter().ok()?.try_for_each(|element| {
            take(left, 2)?;
            take_size(left, &element)
        }),
        ValueKind::Map => value.try_iter().ok()?.try_for_each(|key| {
            take_size(left, &key)?;
            take_size(left, &value.get_item(&key).ok()?)
        }),
        _ => take(left, value.as_str().map_or(LEAST, str::len)),
    }
}
