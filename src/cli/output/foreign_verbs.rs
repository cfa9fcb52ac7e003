//! Verbs of other programs: `meshd node delete` removes a node, `meshd ssh NODE` opens a shell.

use super::command_words;
use clap::Command;

/// Verbs of other programs, each with the verbs of exactly its meaning here: the first that the
/// noun has. Verbs that may mean less or more, such as `destroy`, are only suggested.
const ALIASES: [(&[&str], &[&str]); 8] = [
    (&["delete", "remove", "rm", "del"], &["remove", "delete"]),
    (&["ls", "list"], &["list"]),
    (&["describe", "info"], &["show"]),
    // A drain waits for VMs and tasks.
    (&["cordon"], &["drain"]),
    (&["uncordon", "undrain"], &["resume"]),
    (&["ssh", "shell", "sh"], &["shell", "exec"]),
    (&["reboot", "restart"], &["reboot"]),
    (&["power"], &["power"]),
];
/// Reads of other programs: `show` with a name, else `list`.
const GET: &str = "get";

/// Returns the words of a command with verbs of other programs in the verbs of this one, without
/// the name of the program; `None` if they have no counterpart. `command` is built.
pub(crate) fn translated(command: &Command, words: &[String]) -> Option<Vec<String>> {
    let found = command_words::read(command, words);
    let verb = *found.operands.first()?;
    if found.only_operands || found.option.is_some() {
        return None;
    }
    let mut translated = words.to_vec();
    match found.path.as_slice() {
        [] => {
            // `get nodes` and `delete node n1`: the noun comes first here.
            let noun = found.operands.get(1).and_then(|index| noun_of(command, &words[*index]));
            let (noun, named) = match noun {
                Some(noun) => {
                    translated.remove(found.operands[1]);
                    (noun, found.operands.len() > 2)
                }
                None => (command.find_subcommand("node")?, found.operands.len() > 1),
            };
            translated[verb] = counterpart(noun, &words[verb], named)?.to_owned();
            translated.insert(verb, noun.get_name().to_owned());
        }
        [_] => {
            let is_named = found.operands.len() > 1;
            translated[verb] = counterpart(found.command, &words[verb], is_named)?.to_owned();
        }
        _ => return None,
    }
    Some(translated)
}

/// Returns the group of commands of a noun, also in the plural.
fn noun_of<'c>(command: &'c Command, word: &str) -> Option<&'c Command> {
    let singular = word.strip_suffix('s').unwrap_or(word);
    let noun = [word, singular].into_iter().find_map(|word| command.find_subcommand(word));
    noun.filter(|noun| noun.has_subcommands())
}

fn counterpart<'c>(noun: &'c Command, verb: &str, is_named: bool) -> Option<&'c str> {
    let here = |verb: &&str| noun.find_subcommand(verb).map(Command::get_name);
    if verb == GET {
        return here(if is_named { &"show" } else { &"list" });
    }
    let verbs = ALIASES.iter().filter(|(words, _)| words.contains(&verb));
    verbs.flat_map(|(_, verbs)| *verbs).find_map(here)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory as _;

    #[test]
    fn verbs_of_other_programs_become_verbs_of_meshd() {
        let mut command = Cli::command();
        command.build();
        let shell = if command.find_subcommand("node").unwrap().find_subcommand("shell").is_some() {
            "shell"
        } else {
            "exec"
        };
        for (line, expected) in [
            ("node delete n1 --yes", Some("node remove n1 --yes")),
            ("vm rm v1", Some("vm delete v1")),
            ("node cordon n1", Some("node drain n1")),
            ("node uncordon n1", Some("node resume n1")),
            ("get nodes", Some("node list")),
            ("get node n1 -o json", Some("node show n1 -o json")),
            ("--reason delete delete node n1", Some("--reason delete node remove n1")),
            ("power on n1", Some("node power on n1")),
            ("vm get v1", Some("vm show v1")),
            ("describe vm v1", Some("vm show v1")),
            ("reboot n1", Some("node reboot n1")),
            ("vm destroy v1", None),
            ("slot delete n1/0", None),
            ("node frobnicate n1", None),
            ("frobnicate", None),
            ("-- get nodes", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = translated(&command, &words).map(|words| words.join(" "));
            assert_eq!(found.as_deref(), expected, "{line}");
        }
        let ssh = translated(&command, &["ssh".to_owned(), "n1".to_owned()]).unwrap();
        assert_eq!(ssh, ["node", shell, "n1"]);
    }
}
