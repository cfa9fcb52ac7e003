//! Edits of an inherited list: add or remove one element.

use std::{fmt, str::FromStr};

/// An edit of an inherited list: `quiet` adds, `-quiet` removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit<T> {
    Add(T),
    Remove(T),
}

impl<T: FromStr> FromStr for Edit<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        match text.strip_prefix('-') {
            Some(rest) => rest.parse().map(Edit::Remove),
            None => text.parse().map(Edit::Add),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Edit<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Edit::Add(value) => value.fmt(f),
            Edit::Remove(value) => write!(f, "-{value}"),
        }
    }
}

/// Returns the part of a kernel argument before `=`.
pub fn arg_key(arg: &str) -> &str {
    arg.split_once('=').map_or(arg, |(key, _)| key)
}

/// Arguments that may occur several times: their meaning depends on the previous argument
/// (`hugepagesz=1G hugepages=8 hugepagesz=2M`), or the kernel uses every one
/// (`console=tty0 console=ttyS0`). Of other arguments, only the last one counts.
const REPEATABLE: [&str; 6] =
    ["hugepagesz", "hugepages", "console", "earlycon", "memmap", "modprobe.blacklist"];

/// Returns true if `later` replaces `earlier`.
pub(super) fn replaces_arg(later: &str, earlier: &str) -> bool {
    let positional = REPEATABLE[..2].contains(&arg_key(later));
    let repeated = REPEATABLE.contains(&arg_key(later));
    if repeated { !positional && later == earlier } else { arg_key(later) == arg_key(earlier) }
}

/// Returns true if `-pattern` removes the argument: a key removes all its arguments, `key=value`
/// only equal ones.
pub(super) fn removes_arg(pattern: &str, arg: &str) -> bool {
    if pattern.contains('=') { pattern == arg } else { pattern == arg_key(arg) }
}

/// Applies edits to kernel arguments as in profile inheritance. Removing a missing argument has no
/// effect.
pub fn edit_args(args: &mut Vec<String>, edits: &[Edit<String>]) {
    for edit in edits {
        match edit {
            Edit::Remove(pattern) => args.retain(|arg| !removes_arg(pattern, arg)),
            Edit::Add(arg) => {
                args.retain(|earlier| !replaces_arg(arg, earlier));
                args.push(arg.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(args: &[&str], edits: &[&str]) -> Vec<String> {
        let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let edits: Vec<Edit<String>> = edits.iter().filter_map(|edit| edit.parse().ok()).collect();
        edit_args(&mut args, &edits);
        args
    }

    #[test]
    fn last_argument_of_a_key_wins_and_keeps_its_position() {
        assert_eq!(edited(&["a=1", "quiet"], &["a=2", "quiet"]), ["a=2", "quiet"]);
        assert_eq!(edited(&["a=1", "b"], &["-a", "c"]), ["b", "c"]);
        assert_eq!(edited(&["a=1", "b=1"], &["-a=2", "-b=1"]), ["a=1"]);
    }

    #[test]
    fn positional_and_repeatable_arguments_are_kept() {
        let pages = ["hugepagesz=1G", "hugepages=2", "hugepagesz=2M", "hugepages=2"];
        assert_eq!(edited(&[], &pages), pages);
        assert_eq!(
            edited(&["console=tty0"], &["console=ttyS0", "console=tty0"]),
            ["console=ttyS0", "console=tty0"]
        );
        assert_eq!(edited(&pages, &["-hugepages", "-hugepagesz"]), [""; 0]);
    }
}
