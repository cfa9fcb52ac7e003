//! Tests of command-line parsing, help texts and tables.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `docs` | tests that the program accepts every command of the operator documentation |

mod docs;

use super::{
    client::NodeNames,
    node::{self, boots::timeline},
    output::{self, print},
    *,
};
use meshd_api::{NodeDetail, NodeView, TimelineView};
use meshd_model::fleet::{
    BootSession, ColdBoot, Condition, ConditionKind, Fingerprint, LinkState, Node, Stage, Stall,
    WarmReboot, WarmRebootResult,
};
use meshd_proto::warm_boot::ColdBootCause;
use meshd_types::{Basis, BootSessionId, MacAddr, OperationId, Timestamp};

fn parse(line: &str) -> Result<Cli, ErrorKind> {
    Cli::try_parse_from(line.split(' ')).map_err(|error| error.kind())
}

fn sample() -> Site {
    let text = include_str!("../../../site.toml");
    meshd_config::parse(text, Path::new("site.toml")).unwrap_or_else(|faults| panic!("{faults}"))
}

fn machine() -> (Node, BootSession) {
    let at = Timestamp::from_millis;
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    let mut boot = BootSession::open(BootSessionId([7; 12]), mac, Stage::Dhcp, at(0));
    boot.mark(Stage::Script, at(4_200));
    boot.mark(Stage::Script, at(9_000));
    boot.mark(Stage::Online, at(94_200));
    let fingerprint = Fingerprint {
        manufacturer: "ACME".into(),
        serial: "7\u{1b}[2J".into(),
        ..Default::default()
    };
    let mut node = Node::discovered(Basis::Mac(mac), fingerprint, mac, at(0));
    node.conditions = vec![Condition {
        kind: ConditionKind::WeakIdentity,
        since: at(0),
        detail: "only a MAC".into(),
    }];
    node.last_seen = at(90_000);
    node.address = "10.77.0.100".parse().ok();
    (node, boot)
}

#[test]
fn command_definition_is_valid() {
    Cli::command().debug_assert();
}

#[test]
fn unknown_verb_suggests_one_of_the_same_meaning() {
    for (line, verb) in [
        ("meshd node delete n1", Some("remove")),
        ("meshd vm remove v1", Some("delete")),
        ("meshd slot delete n1/0", None),
        ("meshd node lst", Some("list")),
        ("meshd --reason x task ls", Some("list")),
        ("meshd nodes", Some("node")),
        ("meshd node cordon n1", Some("drain")),
        ("meshd node ssh n1", Some("shell")),
    ] {
        let words: Vec<std::ffi::OsString> = line.split(' ').map(Into::into).collect();
        let typed = line
            .split(' ')
            .find(|word| ["delete", "remove", "lst", "ls", "nodes", "cordon", "ssh"].contains(word))
            .unwrap();
        let found = output::usage_error::similar_verb(&Cli::command(), typed, &words);
        assert_eq!(found.as_deref(), verb, "{line}");
    }
}

#[test]
fn documented_verbs_are_parsed() {
    for line in [
        "meshd serve",
        "meshd check -o json",
        "meshd id --uuid 01020304-0506-0708-090a-0b0c0d0e0f10 --mac 52:54:00:00:00:01 --mac 525400000002",
        "meshd id --manufacturer ACME --product Box --serial 7",
        "meshd node list -o json",
        "meshd status -o json",
        "meshd audit --node n1 --actor token:ci -o yaml",
        "meshd api-token create ci --role operator --expires 90d --reason ticket",
        "meshd api-token list -o json",
        "meshd api-token revoke ci --yes",
        "meshd --server https://10.20.0.5:8444 --token-file t --server-fingerprint ab node list",
        "meshd node show n1 -o yaml",
        "meshd node approve n1",
        "meshd node assign-profile n1 compute --reboot",
        "meshd node reboot n1",
        "meshd node reboot --warm n1",
        "meshd node timeline n1",
        "meshd node timeline n1 --session 070707070707070707070707",
        "meshd node release n1",
        "meshd node set n1 slots=8 tuned=true",
        "meshd node unset n1 slots",
        "meshd node boot-once n1 --kernel-arg debug --kernel-arg -quiet --profile compute --reboot",
        "meshd node boot-once n1 --clear",
        "meshd node history n1 -o json",
        "meshd node diff n1",
        "meshd node pin n1 --generation 0123abcd",
        "meshd node pin n1 --off",
        "meshd node reboot -l rack=a --max 10% --wait",
        "meshd rollout plan gpu[01-40] --profile compute",
        "meshd rollout start -l rack=a --reboot --wave 10% --floor gpu=4 --floor 80% --yes --wait",
        "meshd rollout start --group gpu --profile compute --canaries 2 --domain rack --soak 5m",
        "meshd rollout start -l rack=a --generation 3f2a --window 22:00-06:00 --start-at 2030-01-31T22:00:00Z",
        "meshd rollout start gpu1 --image alpine@3f2a --before-leave leave --gate jobs --after-return back",
        "meshd bisect gpu1 --good 3f2a --bad 91c0 --check jobs --verify --yes",
        "meshd bisect list",
        "meshd bisect show 01020304 -o json",
        "meshd bisect follow 01020304",
        "meshd bisect abort 01020304",
        "meshd rollout list -o json",
        "meshd rollout show 01020304 -o yaml",
        "meshd rollout follow 01020304",
        "meshd rollout pause 01020304",
        "meshd rollout resume 01020304",
        "meshd rollout abort 01020304",
        "meshd rollout undo 01020304 --yes",
        "meshd profile diff discovery compute",
        "meshd profile history compute",
        "meshd profile history compute --changes -o json",
        "meshd profile rollback compute --to 0123abcd",
        "meshd profile rollback compute --off",
        "meshd reload",
        "meshd profile show compute --resolved -o yaml",
        "meshd doctor -o json",
        "meshd task run --group g --nodes 2 --ranks-per-node 4 --timeout 1h -- ./program -x",
        "meshd task run --group g --launcher none --user 1000 --detach -- id",
        "meshd task list -o json",
        "meshd task show 01020304",
        "meshd task logs --follow 01020304",
        "meshd task cancel 01020304",
        "meshd profile list",
        "meshd profile show compute",
        "meshd overlay list",
        "meshd overlay check",
        "meshd overlay render n1 --out x",
        "meshd overlay render --profile compute --uuid 01020304-0506-0708-090a-0b0c0d0e0f10 --out x",
        "meshd image list -o table",
        "meshd image build",
        "meshd image build alpine-lab",
        "meshd image verify",
        "meshd events --follow -o json",
        "meshd lab status",
        "meshd completions bash",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err());
    }
}

#[test]
fn multi_node_verbs_accept_names_or_selector() {
    for line in [
        "meshd node label n1 rack=a feed-",
        "meshd node rename n1 web-1",
        "meshd node list --labels --watch",
        "meshd node list --phase online,degraded --profile compute --find 10.77 --sort -last_seen",
        "meshd node list --condition boot_loop,drift",
        "meshd node list --attention",
        "meshd activities -o json",
        "meshd operation list -o json",
        "meshd operation show 0123abcd -o json",
        "meshd operation follow 0123abcd",
        "meshd operation cancel 0123abcd",
        "meshd search 52:54:00",
        "meshd node list -l rack=a,feed!=2 -o json",
        "meshd node approve n1 n2 n3",
        "meshd node drain -l rack=a --dry-run",
        "meshd node assign-profile n1 n2 compute --reboot",
        "meshd node assign-profile -l rack=a compute",
        "meshd node set -l rack=a slots=8",
        "meshd node unset n1,n2 slots",
        "meshd node label -l rack=a feed=2",
        "meshd node pin n1 n2 --dry-run",
        "meshd node pin -l rack=a --off",
        "meshd node boot-once n1 n2 --kernel-arg debug --reboot",
        "meshd node boot-once -l rack=a --clear",
        "meshd node doctor -l rack=a -o json",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err());
    }
}

#[test]
fn site_option_is_accepted_at_any_position() {
    for line in [
        "meshd --site a.toml node list",
        "meshd node --site a.toml list",
        "meshd node list --site a.toml",
    ] {
        let cli = parse(line).unwrap_or_else(|kind| panic!("{line}: {kind}"));
        assert_eq!(cli.global.site.as_deref(), Some(Path::new("a.toml")), "{line}");
    }
}

#[test]
fn invalid_usage_is_refused() {
    for line in [
        "meshd",
        "meshd nodes",
        "meshd node list -o xml",
        "meshd node list --phase asleep",
        "meshd node list --condition tired",
        "meshd node list --condition drift --expected",
        "meshd search",
        "meshd node list -l rack=",
        "meshd node approve",
        "meshd node approve n1 -l rack=a",
        "meshd node pin -l rack=a --generation 0123",
        "meshd node pin",
        "meshd node doctor",
        "meshd id --uuid 12",
        "meshd overlay render --out x",
        "meshd overlay render n1 --profile p --out x",
        "meshd overlay render n1",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn node_tables_contain_no_control_characters() {
    let (node, boot) = machine();
    let site = sample();
    let now = Timestamp::from_millis(95_000);
    let list = node::list::list(
        &[NodeView::new(&node, Some(&boot), &site, &LinkState::default())],
        now,
        11,
        true,
    );
    insta::assert_snapshot!(list, @r"
    ID        NAME           PROFILE    PHASE       CONDITIONS     ADDRESS      MAC                GENERATION  OVERRIDE  STAGE   SEEN
    bn18jpv9  node-bn18jpv9  discovery  discovered  weak_identity  10.77.0.100  02:00:00:00:00:01  -           -         online  5s ago
    ");
    let view = NodeView::new(&node, Some(&boot), &site, &LinkState::default());
    let bare = node::list::list(std::slice::from_ref(&view), now, 15, false);
    assert_eq!(bare.lines().count(), 1, "no names of columns: {bare}");
    assert!(bare.contains(&view.segment.clone().unwrap_or_else(|| "-".to_owned())), "{bare}");
    let csv = node::list::csv(&[view], true).unwrap();
    let lines: Vec<&str> = csv.lines().collect();
    assert!(lines[0].starts_with("id,name,profile,phase") && lines[0].ends_with(",segment"));
    assert!(lines[1].starts_with("bn18jpv9,node-bn18jpv9,") && lines.len() == 2, "{csv}");
    assert!(lines[1].contains("1970-01-01T00:01:30.000Z"), "the time, not the age: {csv}");
    let detail = NodeDetail::new(&node, Some(&boot), &site, &LinkState::default());
    let shown = node::show(&detail, now);
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    insta::assert_snapshot!(shown, @r"
    id            bn18jpv9
    name          node-bn18jpv9
    basis         mac:02:00:00:00:00:01
    profile       discovery (the site's default)
    phase         discovered
    address       10.77.0.100
    macs          02:00:00:00:00:01
    hardware      ACME 7�[2J
    boot session  070707070707070707070707
    stage         online
    last seen     1970-01-01T00:01:30.000Z (5s ago)
    discovered    1970-01-01T00:00:00.000Z (1m 35s ago)

    recognised by a MAC address alone (weak_identity) since 1970-01-01T00:00:00.000Z (1m 35s ago)
      only a MAC
    ");
}

#[test]
fn node_that_booted_cold_is_shown_with_reason_and_remedy() {
    let (mut node, boot) = machine();
    let result = WarmRebootResult::Cold(ColdBoot {
        cause: ColdBootCause::BootQueue,
        reason: "the boot queue is full".to_owned(),
    });
    let at = Timestamp::from_millis(5_000);
    node.warm_reboot = Some(WarmReboot { operation: OperationId([1; 4]), at, result });
    let detail = NodeDetail::new(&node, Some(&boot), &sample(), &LinkState::default());
    let shown = node::show(&detail, Timestamp::from_millis(95_000));
    for line in [
        "warm reboot   cold (1m 30s ago): the boot queue is full\n",
        "warm remedy   raise [boot].max_loading, or reboot fewer nodes at once\n",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
}

#[test]
fn timeline_shows_stage_durations_and_stalls() {
    let (node, mut boot) = machine();
    let at = Timestamp::from_millis;
    boot.record_wait("image_missing", at(2_000));
    boot.record_wait("image_missing", at(4_000));
    boot.explain_wait("image_missing", "image lab cannot be served: it is not built");
    boot.stalls.push(Stall {
        after: Stage::Script,
        missing: Stage::Kernel,
        since: at(9_000),
        cause: "the script was given and no kernel was fetched whole: does HTTP from the node reach it at all?"
            .to_owned(),
        ended: Some(at(94_200)),
    });
    let older = BootSession::open(BootSessionId([6; 12]), boot.mac, Stage::Dhcp, at(0));
    let view =
        TimelineView::new(&node, boot.id, &[&boot, &older], at(200_000)).expect("it is there");
    let shown = timeline::timeline(&view);
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    insta::assert_snapshot!(shown, @r"
    node          node-bn18jpv9 (bn18jpv9)
    boot session  070707070707070707070707
    mac           02:00:00:00:00:01
    result        online
    took          1m 34s

    STAGE                  AT                        TOOK    TOTAL   COUNT
    dhcp                   1970-01-01T00:00:00.000Z  0.0s    0.0s    -
    (wait: image_missing)  1970-01-01T00:00:02.000Z  2.2s    2.0s    -
    script                 1970-01-01T00:00:04.200Z  4.2s    4.2s    2
    online                 1970-01-01T00:01:34.200Z  1m 30s  1m 34s  -

    stalled from 1970-01-01T00:00:09.000Z until 1970-01-01T00:01:34.200Z: kernel is missing
      the script was given and no kernel was fetched whole: does HTTP from the node reach it at all?

    refused from 1970-01-01T00:00:02.000Z (image_missing):
      image lab cannot be served: it is not built

    BOOT SESSION               BEGAN                     RESULT   STAGE   TOOK
    070707070707070707070707*  1970-01-01T00:00:00.000Z  online   online  1m 34s
    060606060606060606060606   1970-01-01T00:00:00.000Z  stopped  dhcp    0.0s
    ");
}

#[test]
fn long_text_is_wrapped_and_indented() {
    let text = "word ".repeat(40);
    let wrapped = print::wrapped(&text, 4);
    assert!(
        wrapped.lines().all(|line| line.starts_with("    word") && line.len() <= 98),
        "{wrapped}"
    );
    assert_eq!(wrapped.split_whitespace().count(), 40);
    assert_eq!(print::wrapped("", 4), "");
}

#[test]
fn node_json_has_documented_keys() {
    let (node, boot) = machine();
    let view =
        serde_json::to_value(NodeView::new(&node, Some(&boot), &sample(), &LinkState::default()))
            .expect("plain data");
    for key in [
        "id",
        "name",
        "profile",
        "phase",
        "conditions",
        "address",
        "mac",
        "generation",
        "last_seen",
        "boot",
    ] {
        assert!(view.get(key).is_some(), "{key}");
    }
    assert_eq!((&view["profile"], &view["phase"]), (&"discovery".into(), &"discovered".into()));
    assert_eq!(
        (&view["boot"]["session"], &view["boot"]["stage"]),
        (&"07".repeat(12).into(), &"online".into())
    );
    assert_eq!(view["boot"]["stages"][1]["stage"], "script");
}

#[test]
fn durations_and_sizes_are_formatted_with_units() {
    let spans = [0, 940, 59_999, 60_000, 5_405_000, 90_000_000]
        .map(|ms| print::span(std::time::Duration::from_millis(ms)));
    assert_eq!(spans, ["0.0s", "0.9s", "59.9s", "1m 00s", "1h 30m", "1d 1h"]);
    assert_eq!([17, 1 << 10, 28_311_552].map(print::bytes), ["17 B", "1.0 KiB", "27.0 MiB"]);
}

#[test]
fn path_segments_are_percent_encoded() {
    for (name, carried) in [
        ("n1", "n1"),
        ("a/../b", "a%2F..%2Fb"),
        ("..", "%2E%2E"),
        ("a b?", "a%20b%3F"),
        ("ü", "%C3%BC"),
    ] {
        assert_eq!(meshd_api::segment(name), carried);
    }
}

/// Longest line of help, in characters.
const HELP: usize = 60;

fn commands(command: &clap::Command) -> Vec<clap::Command> {
    let below = command.get_subcommands().flat_map(commands);
    std::iter::once(command.clone()).chain(below).collect()
}

#[test]
fn help_is_short_imperative_and_without_pronouns() {
    let mut faults = Vec::new();
    for command in commands(&<Cli as clap::CommandFactory>::command()) {
        let own =
            command.get_about().map(|about| (command.get_name().to_owned(), about.to_string()));
        let arguments = command
            .get_arguments()
            .filter(|argument| !["help", "version"].contains(&argument.get_id().as_str()));
        let arguments = arguments.map(|argument| {
            let name = format!("{} {}", command.get_name(), argument.get_id());
            (name, argument.get_help().map(ToString::to_string).unwrap_or_default())
        });
        for (name, help) in own.into_iter().chain(arguments) {
            let words: Vec<String> =
                help.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase).collect();
            let pronoun = ["it", "them", "they", "what", "who", "such"].into_iter().find(|word| {
                words.iter().any(|found| found == word)
                    && !(*word == "such" && help.contains("such as"))
            });
            // `it reads MESHD_RANK`: the program is in the same sentence.
            let pronoun = pronoun.filter(|_| !help.contains("MESHD_RANK"));
            if help.is_empty()
                || help.chars().count() > HELP
                || help.ends_with('.')
                || pronoun.is_some()
            {
                faults.push(format!("{name}: {help:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn vm_deletion_names_the_disks_that_it_wipes() {
    let volume = |name: &str, more: &str| {
        format!("[[volume]]\nname = \"{name}\"\nformat = \"raw\"\n{more}\n")
    };
    let text = String::from("name = \"train-7\"\nvcpus = 2\nmemory = \"1G\"\n")
        + &volume("data", "disk = \"SN-1\"\non_release = \"wipe\"\nadopt = true")
        + &volume("kept", "disk = \"SN-2\"\nadopt = true");
    let uuid = "77010203-0405-0607-0809-0a0b0c0d0e01".parse().unwrap();
    let vm = meshd_config::vm::parse(&text, Path::new("vm.toml"))
        .unwrap_or_else(|faults| panic!("{faults}"));
    let request = vm.complete(&meshd_config::vm::VmTemplates::new(), uuid).unwrap();
    let vm =
        meshd_api::VmView::new(&meshd_model::work::Vm::new(request, None, Timestamp::EPOCH), false);
    let node = "4dv2k9wx".parse().unwrap();
    let vm = meshd_api::VmView { node: Some(node), ..vm };
    let names = NodeNames::of(node, "gpu-7");
    let question = vm::deletion(&vm, &names, false);
    assert!(question.contains("on gpu-7 (4dv2k9wx)"), "{question}");
    assert!(
        question.contains("train-7 (77010203-") && question.contains("wiped: SN-1 (volume data)"),
        "{question}"
    );
    assert!(!question.contains("SN-2"), "{question}");
    assert!(
        vm::deletion(&vm, &names, true).contains("not wiped: SN-1"),
        "{}",
        vm::deletion(&vm, &names, true)
    );
}
