//! Adds the options of the caller to commands in messages: a copied command reaches the same central
//! node.

use std::{ffi::OsStr, sync::OnceLock};

/// Commands that read files of this machine only.
const WITHOUT_CENTRAL: [&str; 6] = ["bundle", "check", "image", "init", "overlay", "serve"];
/// Commands that use neither a site file nor a central node.
const WITHOUT_SITE: [&str; 3] = ["completions", "id", "lab"];
/// Options that name a central node.
const NAMES: [&str; 3] = ["--site", "--socket", "--server"];
/// Characters that end a command in a sentence.
const ENDS: [char; 6] = ['`', ';', ',', '(', ')', '\n'];

static GIVEN: OnceLock<GivenOptions> = OnceLock::new();

/// The options by which the caller named a site file or a central node, as words of a shell.
pub(crate) struct GivenOptions {
    verbs: Vec<String>,
    site: String,
    central: String,
}

impl GivenOptions {
    /// Creates no options. `verbs` are the commands of this program.
    pub(crate) fn new(verbs: Vec<String>) -> Self {
        GivenOptions { verbs, site: String::new(), central: String::new() }
    }

    /// Adds the site file.
    pub(crate) fn add_site(&mut self, option: &str, env: &str, file: Option<&OsStr>) {
        self.site += &words(option, env, file);
    }

    /// Adds an option that names a central node.
    pub(crate) fn add_central(&mut self, option: &str, env: &str, value: Option<&OsStr>) {
        self.central += &words(option, env, value);
    }

    /// Adds the options to all messages of this process.
    pub(crate) fn apply(self) {
        // A second command in one process, as in tests, keeps the options of the first.
        let _ = GIVEN.set(self);
    }

    /// Returns the options that a command needs to reach the same files and central node.
    fn of(&self, verb: &str) -> String {
        let site = if WITHOUT_SITE.contains(&verb) { "" } else { &self.site };
        let is_local = WITHOUT_SITE.contains(&verb) || WITHOUT_CENTRAL.contains(&verb);
        let central = if is_local { "" } else { &self.central };
        format!("{site}{central}")
    }

    fn add_to(&self, text: &str) -> String {
        let mut shown = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, command)) = rest.split_once("meshd ") {
            shown += before;
            let is_word = !shown.ends_with(|c: char| c.is_alphanumeric() || "/-_.".contains(c));
            shown += "meshd ";
            let is_letter = |c: char| c.is_ascii_lowercase() || c == '-';
            let verb = &command[..command.find(|c| !is_letter(c)).unwrap_or(command.len())];
            let sentence = &command[..command.find(ENDS).unwrap_or(command.len())];
            let is_command = is_word && self.verbs.iter().any(|known| known == verb);
            if is_command && !NAMES.iter().any(|name| sentence.contains(name)) {
                shown += &self.of(verb);
            }
            rest = command;
        }
        shown + rest
    }
}

/// Returns a text for people whose commands have the options of the caller.
pub(crate) fn with_given_options(text: &str) -> String {
    GIVEN.get().map_or_else(|| text.to_owned(), |given| given.add_to(text))
}

/// Returns an option and its value for a shell. A value of the environment holds for the next
/// command, too.
fn words(option: &str, env: &str, value: Option<&OsStr>) -> String {
    let is_given = |value: &&OsStr| std::env::var_os(env).as_deref() != Some(*value);
    let value = value.filter(is_given).map(|value| quote(&value.to_string_lossy()));
    value.map(|value| format!("{option} {value} ")).unwrap_or_default()
}

fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(site: Option<&str>, socket: Option<&str>) -> GivenOptions {
        let verbs = ["node", "image", "lab", "vm"].map(str::to_owned).to_vec();
        let mut given = GivenOptions::new(verbs);
        given.add_site("--site", "MESHD_TEST_UNSET", site.map(OsStr::new));
        given.add_central("--socket", "MESHD_TEST_UNSET", socket.map(OsStr::new));
        given
    }

    #[test]
    fn command_of_a_hint_has_the_options_of_its_caller() {
        let site = given(Some("my rack/site.toml"), None);
        assert_eq!(
            site.add_to("`meshd node list` or meshd vm show v1; `meshd lab up`"),
            "`meshd --site 'my rack/site.toml' node list` or meshd --site 'my rack/site.toml' vm \
             show v1; `meshd lab up`"
        );
        let both = given(Some("s"), Some("x.sock"));
        assert_eq!(
            both.add_to("meshd image build a, then `meshd node list`"),
            "meshd --site s image build a, then `meshd --site s --socket x.sock node list`"
        );
    }

    #[test]
    fn text_that_is_no_command_or_names_a_site_is_unchanged() {
        let given = given(Some("s"), None);
        for text in [
            "is meshd running? start meshd",
            "meshd nodes; /usr/bin/meshd node list",
            "`meshd image build a --site other.toml`",
            "meshd ",
            "",
        ] {
            assert_eq!(given.add_to(text), text);
        }
    }
}
