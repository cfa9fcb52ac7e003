//! Output for people and programs.
//!
//! | module | content |
//! | --- | --- |
//! | `writer` | the only writer: standard output, messages, output of foreign programs |
//! | `clean` | replaces characters that a terminal would execute, or that disguise other text |
//! | `command_words` | reads the words of a command line that is incomplete, or has an unknown verb |
//! | `foreign_verbs` | verbs of other programs, such as `delete` and `ssh` |
//! | `given_options` | commands in messages, with the options of the caller |
//! | `text_filter` | filter of foreign text that arrives in pieces |
//! | `file` | files that a command writes |
//! | `keyboard` | keys of the terminal, or bytes of a pipe, for a program elsewhere |
//! | `print` | one value as a table, JSON or YAML |
//! | `list` | options of commands that list things |
//! | `progress` | progress of builds |
//! | `failure` | the error of a command: object, cause, hint, exit code |
//! | `usage_error` | errors of the command line, with the verb that was probably meant, and help texts |

#[macro_use]
pub(crate) mod writer;

pub(crate) mod clean;
pub(crate) mod command_words;
pub(crate) mod failure;
pub(crate) mod file;
pub(crate) mod foreign_verbs;
pub(crate) mod given_options;
pub(crate) mod keyboard;
pub(crate) mod list;
pub(crate) mod print;
pub(crate) mod progress;
mod text_filter;
pub(crate) mod usage_error;
