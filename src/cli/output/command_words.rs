//! Reads the words of a command line as far as they go: also one that is incomplete, or has an
//! unknown verb.

use clap::{Arg, Command};

/// What the words of a command line name.
pub(crate) struct CommandWords<'c> {
    /// The innermost command.
    pub(crate) command: &'c Command,
    /// Names of the commands before it, and its own, without that of the program.
    pub(crate) path: Vec<&'c str>,
    /// Indexes of the words that are operands of the command.
    pub(crate) operands: Vec<usize>,
    /// The option whose value is the next word.
    pub(crate) option: Option<&'c Arg>,
    /// Whether `--` came: all further words are operands.
    pub(crate) only_operands: bool,
    /// Global options with their values.
    pub(crate) globals: Vec<String>,
}

/// Reads the words after the name of the program. `command` is built.
pub(crate) fn read<'c>(command: &'c Command, words: &[String]) -> CommandWords<'c> {
    let mut found = CommandWords {
        command,
        path: Vec::new(),
        operands: Vec::new(),
        option: None,
        only_operands: false,
        globals: Vec::new(),
    };
    for (index, word) in words.iter().enumerate() {
        found.add(index, word);
    }
    found
}

impl<'c> CommandWords<'c> {
    fn add(&mut self, index: usize, word: &str) {
        // bash splits `--output=json` into three words.
        if word == "=" && self.option.is_some() {
            return;
        }
        if let Some(option) = self.option.take() {
            if option.is_global_set() {
                self.globals.push(word.to_owned());
            }
            return;
        }
        if self.only_operands || word == "-" || !word.starts_with('-') {
            let command = self.command;
            let is_open = !self.only_operands && self.operands.is_empty();
            match command.find_subcommand(word).filter(|_| is_open) {
                Some(command) => {
                    self.command = command;
                    self.path.push(command.get_name());
                }
                None => self.operands.push(index),
            }
            return;
        }
        if word == "--" {
            self.only_operands = true;
            return;
        }
        let Some(option) = self.option_of(word) else { return };
        if option.is_global_set() {
            self.globals.push(word.to_owned());
        }
        let has_value = word.contains('=') || (!word.starts_with("--") && word.len() > 2);
        if option.get_action().takes_values() && !has_value {
            self.option = Some(option);
        }
    }

    /// Returns the option that a word names. Of several letters, only the first one counts: no
    /// option with a value stands behind other letters in practice.
    fn option_of(&self, word: &str) -> Option<&'c Arg> {
        let mut options = self.command.get_arguments();
        match word.strip_prefix("--") {
            Some(long) => {
                let name = long.split('=').next();
                options.find(|option| option.get_long() == name)
            }
            None => {
                let letter = word.chars().nth(1);
                options.find(|option| option.get_short() == letter)
            }
        }
    }

    /// Returns the operand that the next word is.
    pub(crate) fn next_operand(&self) -> Option<&'c Arg> {
        let operands: Vec<&Arg> = self.command.get_positionals().collect();
        let last = operands.iter().find(|operand| operand.is_last_set());
        if self.only_operands {
            return last.or_else(|| operands.last()).copied();
        }
        let plain: Vec<&Arg> =
            operands.into_iter().filter(|operand| !operand.is_last_set()).collect();
        let is_list =
            |operand: &&Arg| operand.get_num_args().is_some_and(|count| count.max_values() > 1);
        let given = self.operands.len();
        plain.get(given).copied().or_else(|| plain.last().copied().filter(is_list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory as _;

    fn built() -> Command {
        let mut command = Cli::command();
        command.build();
        command
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn values_of_options_are_neither_commands_nor_operands() {
        let command = built();
        let line = words("--reason list --socket /s node show -o json --json gpu001");
        let found = read(&command, &line);
        assert_eq!(found.path, ["node", "show"]);
        assert_eq!(found.operands, [9]);
        assert_eq!(found.globals, ["--reason", "list", "--socket", "/s"]);
        assert_eq!(found.next_operand().unwrap().get_id().as_str(), "nodes", "a list goes on");
    }

    #[test]
    fn pending_option_and_words_after_two_dashes_are_known() {
        let command = built();
        let pending = read(&command, &words("node list --sort"));
        assert_eq!(pending.option.unwrap().get_id().as_str(), "sort");
        let exec = read(&command, &words("node exec n1 -- ls -l"));
        assert_eq!((exec.operands.len(), exec.only_operands), (3, true));
        assert_eq!(exec.next_operand().unwrap().get_id().as_str(), "argv");
        let split = read(&command, &words("node list --sort = name"));
        assert!(split.option.is_none() && split.operands.is_empty());
        let unknown = read(&command, &words("node delete n1"));
        assert_eq!((unknown.path, unknown.operands), (vec!["node"], vec![1, 2]));
    }
}
