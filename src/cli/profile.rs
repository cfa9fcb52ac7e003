//! `meshd profile`: lists, shows and rolls back profiles. `list` and `show` read the site file;
//! with `--server` they use the API.

use super::{
    Context, Failure,
    node::generations,
    output::list::ListOutput,
    output::print::{Output, fields, table},
    overlay::render::{Renderer, overlays},
    wait,
};
use clap::Subcommand;
use meshd_api::{ProfileView, routes as api};
use meshd_config::{Setting, Site, suggest};
use meshd_model::fleet::GenerationDiff;
use meshd_proto::CheckPolicy;
use meshd_types::Vars;
use serde::Serialize;

#[derive(Debug, Subcommand)]
pub(super) enum Profile {
    /// List profiles
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Show a profile with its inherited values
    Show {
        /// Name
        name: String,
        /// Show which profile set each value
        #[arg(long)]
        resolved: bool,
        #[command(flatten)]
        output: Output,
    },
    /// List former generations of a profile, newest first
    History(generations::RevisionsArgs),
    /// Roll a profile back to a former generation
    Rollback(generations::RollbackArgs),
    /// Compare two profiles
    Diff {
        /// First profile
        from: String,
        /// Second profile
        to: String,
        #[command(flatten)]
        output: Output,
    },
}

impl Profile {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        if let Profile::History(history) = self {
            return wait(history.run(&context.client()?));
        }
        if let Profile::Rollback(rollback) = self {
            return wait(rollback.run(context.client()?));
        }
        if context.is_remote()
            && let Some(done) = self.of_server(context)
        {
            return done;
        }
        let site = context.site()?;
        match self {
            Profile::History(_) | Profile::Rollback(_) => Ok(()),
            Profile::List { output } => {
                let all: Vec<_> = site
                    .profiles
                    .values()
                    .map(|profile| ProfileView::new(profile, &site))
                    .collect();
                output.print(&all, |all| list(all))
            }
            Profile::Diff { from, to, output } => output.print(
                &difference(&site, find(&site, &from)?, find(&site, &to)?)?,
                show_difference,
            ),
            Profile::Show { name, resolved: true, output } => {
                output.print(&find(&site, &name)?.settings, |all| settings(all))
            }
            Profile::Show { name, resolved: false, output } => {
                output.print(&ProfileView::new(find(&site, &name)?, &site), show)
            }
        }
    }
}

impl Profile {
    /// Prints profiles from the API if `--server` is present. Returns `None` for a command that
    /// requires local files.
    fn of_server(&self, context: &Context) -> Option<Result<(), Failure>> {
        let all = || -> Result<Vec<ProfileView>, Failure> {
            let client = context.client()?;
            wait(client.get(api::LIST_PROFILES.path([])))
        };
        match self {
            Profile::List { output } => {
                Some(all().and_then(|all| output.print(&all, |all| list(all))))
            }
            Profile::Show { name, resolved: false, output } => Some(all().and_then(|all| {
                let found =
                    all.iter().find(|profile| profile.name.as_str() == name).ok_or_else(|| {
                        let hint = suggest(name, all.iter().map(|profile| profile.name.as_str()));
                        Failure::new(format!("the server has no profile `{name}`"), hint)
                    })?;
                output.print(found, show)
            })),
            _ => None,
        }
    }
}

/// Finds a profile by name.
pub(super) fn find<'s>(site: &'s Site, name: &str) -> Result<&'s meshd_config::Profile, Failure> {
    site.profiles.values().find(|profile| profile.name.as_str() == name).ok_or_else(|| {
        let hint = suggest(name, site.profiles.keys().map(meshd_types::ProfileName::as_str));
        Failure::new(format!("there is no profile `{name}` in {}", site.file.display()), hint)
    })
}

fn join_words<T: ToString>(list: &[T]) -> String {
    list.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

/// The difference between two profiles.
#[derive(Debug, Serialize)]
struct Difference {
    /// Values that only the first profile has.
    removed: Vec<Setting>,
    /// Values that only the second profile has.
    added: Vec<Setting>,
    /// Difference between the rendered generations of the two profiles.
    rendered: GenerationDiff,
}

fn difference(
    site: &Site,
    from: &meshd_config::Profile,
    to: &meshd_config::Profile,
) -> Result<Difference, Failure> {
    let mut renderer = Renderer::new(site, overlays(site)?);
    let before = renderer.generation(from)?;
    let after = renderer.generation(to)?;
    let only = |one: &meshd_config::Profile, other: &meshd_config::Profile| -> Vec<Setting> {
        let is_in_other =
            |setting: &Setting| other.settings.iter().any(|candidate| is_same(candidate, setting));
        let effective = one.settings.iter().filter(|setting| setting.removed_by.is_none());
        effective.filter(|setting| !is_in_other(setting)).cloned().collect()
    };
    Ok(Difference { removed: only(from, to), added: only(to, from), rendered: before.diff(&after) })
}

fn is_same(one: &Setting, other: &Setting) -> bool {
    other.removed_by.is_none() && (&one.key, &one.value) == (&other.key, &other.value)
}

fn show_difference(difference: &Difference) -> String {
    let line = |sign: char| {
        move |setting: &Setting| {
            format!("{sign} {} = {} (set by {})\n", setting.key, setting.value, setting.by)
        }
    };
    let removed = difference.removed.iter().map(line('-'));
    let settings: String = removed.chain(difference.added.iter().map(line('+'))).collect();
    format!("{settings}{}", generations::difference(&difference.rendered))
}

/// Formats variables as arguments of `meshd node set`.
pub(super) fn vars(vars: &Vars) -> String {
    vars.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn checks(policy: &CheckPolicy) -> String {
    let rules = policy.rules.iter().map(|(check, rule)| format!("{check}: {}", rule.as_str()));
    let thresholds = &policy.thresholds;
    let limit = |text: &str, value: Option<u64>, unit: &str| {
        value.map(|value| format!("{text} {value} {unit}"))
    };
    let limits = [
        limit("memory at least", thresholds.memory_mib, "MiB"),
        limit("clock off at most", thresholds.clock_offset_s, "s"),
        limit("store warns below", thresholds.store_warn_gb, "GB"),
        limit("store at least", thresholds.store_fail_gb, "GB"),
    ];
    rules.chain(limits.into_iter().flatten()).collect::<Vec<_>>().join(", ")
}

fn list(profiles: &[ProfileView]) -> String {
    table(
        ["name", "extends", "image", "overlays", "kernel args", "default"],
        profiles.iter().map(|profile| {
            [
                profile.name.to_string(),
                join_words(profile.extends.as_slice()),
                profile.image.to_string(),
                join_words(&profile.overlays),
                join_words(&profile.kernel_args),
                if profile.default { "yes".into() } else { String::new() },
            ]
        }),
    )
}

fn settings(all: &[Setting]) -> String {
    let removed =
        |setting: &Setting| setting.removed_by.as_ref().map(|by| format!("removed by {by}"));
    table(
        ["key", "value", "set by", "note"],
        all.iter().map(|setting| {
            let note = removed(setting).unwrap_or_default();
            [setting.key.clone(), setting.value.to_string(), setting.by.to_string(), note]
        }),
    )
}

fn show(profile: &ProfileView) -> String {
    fields([
        ("name", profile.name.to_string()),
        ("extends", join_words(profile.extends.as_slice())),
        ("image", profile.image.to_string()),
        ("overlays", join_words(&profile.overlays)),
        ("kernel args", join_words(&profile.kernel_args)),
        ("packages", join_words(&profile.packages)),
        ("bundles", join_words(&profile.bundles)),
        ("vfio", join_words(&profile.vfio)),
        ("data disks", join_words(&profile.data_disks)),
        ("vars", vars(&profile.vars)),
        ("checks", checks(&profile.checks)),
        (
            "default",
            if profile.default { "yes: unknown nodes boot it".into() } else { String::new() },
        ),
    ])
}
