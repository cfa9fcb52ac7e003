//! `meshd complete`: the words that may complete a command line. The scripts of `meshd completions`
//! call it, so names of nodes, VMs and profiles are those of the running meshd.

use crate::cli::{
    Cli, Context, Failure,
    client::AdminClient,
    output::{command_words, print::write},
    wait,
};
use clap::{Arg, Args, CommandFactory as _, Parser as _};
use meshd_api::{MachineView, routes as api};
use meshd_types::failpoint;
use serde::Deserialize;
use std::time::Duration;

/// Time limit for names. A shell waits for them.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Such as `meshd complete -- node show gpu`: the last word is the beginning to complete.
#[derive(Debug, Args)]
pub(crate) struct Complete {
    /// Words after the name of the program
    #[arg(last = true)]
    words: Vec<String>,
}

/// What an argument is a name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameKind {
    Node,
    Vm,
    Profile,
}

/// Words that may complete a command line.
#[derive(Debug, PartialEq, Eq)]
enum Candidates {
    Words(Vec<String>),
    Names(NameKind),
}

#[derive(Deserialize)]
struct NodeName {
    name: String,
}

impl Complete {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let Some((beginning, words)) = self.words.split_last() else { return Ok(()) };
        let mut command = Cli::command();
        command.build();
        let found = command_words::read(&command, words);
        let mut matching: Vec<String> = match candidates(&found, beginning) {
            Candidates::Words(words) => words,
            Candidates::Names(kind) => {
                // A hostlist has several names: the last one is completed.
                let before = beginning.rfind(',').map_or("", |comma| &beginning[..=comma]);
                // A message would disturb the line of the shell.
                let names = names(kind, &found.globals).unwrap_or_default();
                names.into_iter().map(|name| format!("{before}{name}")).collect()
            }
        };
        matching.retain(|word| word.starts_with(beginning.as_str()));
        matching.sort();
        matching.dedup();
        write(&matching.iter().map(|word| format!("{word}\n")).collect::<String>())
    }
}

fn candidates(found: &command_words::CommandWords<'_>, beginning: &str) -> Candidates {
    if let Some(option) = found.option {
        return values(option);
    }
    if beginning.starts_with('-') && !found.only_operands {
        let options = found.command.get_arguments().filter(|option| !option.is_hide_set());
        let names = options.filter_map(|option| Some(format!("--{}", option.get_long()?)));
        return Candidates::Words(names.collect());
    }
    let verbs = found.command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let verbs: Vec<String> = verbs.map(|verb| verb.get_name().to_owned()).collect();
    if !verbs.is_empty() && found.operands.is_empty() {
        return Candidates::Words(verbs);
    }
    found.next_operand().map_or(Candidates::Words(Vec::new()), values)
}

/// Returns the values of an argument that has a list of them, or is a name.
fn values(argument: &Arg) -> Candidates {
    let possible: Vec<String> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| value.get_name().to_owned())
        .collect();
    let title = argument.get_value_names().and_then(|names| names.first()).map(|name| &**name);
    let kind = match title {
        Some("NODE" | "NODE|PROFILE") => Some(NameKind::Node),
        Some("VM") => Some(NameKind::Vm),
        Some("PROFILE") => Some(NameKind::Profile),
        _ => None,
    };
    match kind {
        Some(kind) if possible.is_empty() => Candidates::Names(kind),
        _ => Candidates::Words(possible),
    }
}

/// Returns the names of the central node that the global options name.
fn names(kind: NameKind, globals: &[String]) -> Result<Vec<String>, Failure> {
    let words = ["meshd"].into_iter().chain(globals.iter().map(String::as_str)).chain(["status"]);
    let cli = Cli::try_parse_from(words).map_err(|error| Failure::without_hint(&error))?;
    let client = Context::of(cli.global).client()?;
    let limit = failpoint::time("COMPLETION", TIMEOUT);
    wait(async {
        let names = tokio::time::timeout(limit, names_of(kind, &client)).await;
        names.map_err(|_| Failure::new("meshd does not answer", ""))?
    })
}

async fn names_of(kind: NameKind, client: &AdminClient) -> Result<Vec<String>, Failure> {
    match kind {
        NameKind::Vm => {
            let vms = client.get(api::LIST_VMS.path([])).await?;
            Ok(vms.into_iter().map(|vm| vm.name.to_string()).collect())
        }
        NameKind::Profile => {
            let profiles = client.get(api::LIST_PROFILES.path([])).await?;
            Ok(profiles.into_iter().map(|profile| profile.name.to_string()).collect())
        }
        NameKind::Node => {
            let path = api::LIST_NODES.path([]).with("fields", "name");
            let mut body = Vec::new();
            let read = client.stream(path, |bytes| {
                body.extend_from_slice(bytes);
                Ok(())
            });
            read.await?;
            let nodes: Vec<NodeName> =
                serde_json::from_slice(&body).map_err(|error| Failure::without_hint(&error))?;
            let machines = client.get(api::LIST_MACHINES.path([])).await?;
            let expected = machines.into_iter().filter(|view| view.machine.node.is_none());
            let expected = expected.filter_map(|MachineView { machine }| machine.name);
            Ok(nodes.into_iter().map(|node| node.name).chain(expected).collect())
        }
    }
}

/// Returns the script of a shell that calls `meshd complete`; `None` for other shells.
pub(super) fn script(shell: clap_complete::Shell) -> Option<&'static str> {
    match shell {
        clap_complete::Shell::Bash => Some(BASH),
        clap_complete::Shell::Zsh => Some(ZSH),
        _ => None,
    }
}

const BASH: &str = r#"# Completion of meshd in bash, with the names of nodes, VMs and profiles.
_meshd() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" complete -- \
        "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _meshd meshd
"#;

const ZSH: &str = r#"#compdef meshd
# Completion of meshd in zsh, with the names of nodes, VMs and profiles.
_meshd() {
    local -a found
    found=(${(f)"$(${words[1]} complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( ${#found} )); then
        compadd -Q -a found
    else
        _files
    fi
}
if [ "$funcstack[1]" = "_meshd" ]; then
    _meshd "$@"
else
    compdef _meshd meshd
fi
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str, beginning: &str) -> Candidates {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let mut command = Cli::command();
        command.build();
        candidates(&command_words::read(&command, &words), beginning)
    }

    fn words(line: &str, beginning: &str) -> Vec<String> {
        let Candidates::Words(words) = of(line, beginning) else { panic!("{line}") };
        words
    }

    #[test]
    fn operand_or_value_that_is_a_name_is_completed_from_meshd() {
        for (line, kind) in [
            ("node show", NameKind::Node),
            ("node drain n1", NameKind::Node),
            ("node power on", NameKind::Node),
            ("node assign-profile", NameKind::Node),
            ("events --node", NameKind::Node),
            ("vm show", NameKind::Vm),
            ("node list --profile", NameKind::Profile),
        ] {
            assert_eq!(of(line, ""), Candidates::Names(kind), "{line}");
        }
    }

    #[test]
    fn verbs_options_and_listed_values_are_completed() {
        assert!(words("node", "").contains(&"drain".to_owned()));
        assert!(!words("", "").contains(&"complete".to_owned()), "a hidden verb");
        assert!(words("node list", "--s").contains(&"--sort".to_owned()));
        assert!(words("node list -o", "").contains(&"wide".to_owned()));
        assert!(words("id --uuid", "").is_empty(), "files of the shell");
    }
}
