//! `meshd profile`: what nodes can be. Read from the site file, so it needs no running meshd.

use super::{
    Context, Failure,
    print::{Output, fields, table},
};
use crate::config::{Site, suggest};
use crate::serve::admin::view::ProfileView;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(super) enum Profile {
    /// All profiles, with everything inherited
    List {
        #[command(flatten)]
        output: Output,
    },
    /// One profile, with everything inherited
    Show {
        /// Its name
        name: String,
        #[command(flatten)]
        output: Output,
    },
}

impl Profile {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        match self {
            Profile::List { output } => {
                let all: Vec<_> = site.profiles.values().map(|profile| ProfileView::new(profile, &site)).collect();
                output.print(&all, |all| list(all))
            }
            Profile::Show { name, output } => output.print(&ProfileView::new(find(&site, &name)?, &site), show),
        }
    }
}

/// A profile by the name that somebody typed.
pub(super) fn find<'s>(site: &'s Site, name: &str) -> Result<&'s crate::config::Profile, Failure> {
    site.profiles.values().find(|profile| profile.name.as_str() == name).ok_or_else(|| {
        let hint = suggest(name, site.profiles.keys().map(crate::id::ProfileName::as_str));
        Failure::new(format!("there is no profile `{name}` in {}", site.file.display()), hint)
    })
}

fn words<T: ToString>(list: &[T]) -> String {
    list.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

fn list(profiles: &[ProfileView]) -> String {
    table(
        ["name", "extends", "image", "overlays", "kernel args", "default"],
        profiles.iter().map(|profile| {
            [
                profile.name.to_string(),
                words(profile.extends.as_slice()),
                profile.image.to_string(),
                words(&profile.overlays),
                words(&profile.kernel_args),
                if profile.default { "yes".into() } else { String::new() },
            ]
        }),
    )
}

fn show(profile: &ProfileView) -> String {
    fields([
        ("name", profile.name.to_string()),
        ("extends", words(profile.extends.as_slice())),
        ("image", profile.image.to_string()),
        ("overlays", words(&profile.overlays)),
        ("kernel args", words(&profile.kernel_args)),
        ("packages", words(&profile.packages)),
        ("vfio", words(&profile.vfio)),
        ("default", if profile.default { "yes: what an unknown node boots".into() } else { String::new() }),
    ])
}
