//! One profile as written in the file, before inheritance.

use crate::{
    Hugepages, PageSize, VfioSelector, WarmPolicy, check,
    edit::Edit,
    reader::{Document, Located, Table},
    sections::vars,
};
use meshd_proto::{CHECKS, CheckRule, DiskIdentity, Thresholds, stage1::RootMode, vm::ByteSize};
use meshd_types::{BundleName, ImageName, OverlayName, ParseError, ProfileName, VarName, VarValue};
use std::{ops::RangeInclusive, str::FromStr};

/// 64 TiB in the smaller page size.
const MAX_PAGES: u32 = 1 << 25;

/// Sizes of the writable layer over a root.
const WRITABLE: RangeInclusive<ByteSize> = ByteSize::from_mib(16)..=ByteSize::from_mib(1 << 20);

/// A key of `[profiles.*.thresholds]`.
pub(crate) struct Threshold {
    pub(crate) key: &'static str,
    max: i64,
    pub(crate) field: fn(&mut Thresholds) -> &mut Option<u64>,
}

pub(crate) const THRESHOLDS: [Threshold; 4] = [
    Threshold { key: "memory_mib", max: 1 << 30, field: |all| &mut all.memory_mib },
    Threshold { key: "clock_offset_s", max: 86_400, field: |all| &mut all.clock_offset_s },
    Threshold { key: "store_warn_gb", max: 1 << 24, field: |all| &mut all.store_warn_gb },
    Threshold { key: "store_fail_gb", max: 1 << 24, field: |all| &mut all.store_fail_gb },
];

pub(crate) struct WrittenProfile {
    pub(crate) name: ProfileName,
    pub(crate) position: Located<()>,
    pub(crate) extends: Option<Located<ProfileName>>,
    /// `extends` is present, valid or not.
    pub(crate) has_parent: bool,
    pub(crate) image: Option<Located<ImageName>>,
    pub(crate) has_image: bool,
    pub(crate) overlays: Vec<Located<Edit<OverlayName>>>,
    pub(crate) kernel_args: Vec<Located<Edit<String>>>,
    pub(crate) packages: Vec<Located<Edit<String>>>,
    pub(crate) bundles: Vec<Located<Edit<BundleName>>>,
    pub(crate) vfio: Vec<Located<Edit<VfioSelector>>>,
    pub(crate) data_disks: Vec<Located<Edit<DiskIdentity>>>,
    pub(crate) hugepages: Option<Located<Hugepages>>,
    pub(crate) writable: Option<Located<ByteSize>>,
    pub(crate) root_mode: Option<Located<RootMode>>,
    pub(crate) warm: Option<Located<WarmPolicy>>,
    pub(crate) vars: Vec<(VarName, Located<VarValue>)>,
    pub(crate) checks: Vec<Located<(String, CheckRule)>>,
    pub(crate) thresholds: Vec<Located<(&'static str, i64)>>,
}

impl WrittenProfile {
    /// Reads everything but the name, which the caller sets.
    pub(crate) fn read(document: &Document, table: &Table<'_>) -> Self {
        let checked =
            |key: &str, rule: fn(&str) -> Result<(), ParseError>| -> Vec<Located<Edit<String>>> {
                let one = |text: Located<String>| {
                    let edit = Edit::<String>::from_str(&text).ok()?;
                    let (Edit::Add(plain) | Edit::Remove(plain)) = &edit;
                    rule(plain).map_err(|error| document.error(&text, &error)).ok()?;
                    Some(text.with(edit))
                };
                table.strings(key).into_iter().filter_map(one).collect()
            };
        WrittenProfile {
            name: "unnamed".parse().expect("a constant name is plain"),
            position: table.own_position(),
            extends: table.parsed("extends"),
            has_parent: table.has("extends"),
            image: table.parsed("image"),
            has_image: table.has("image"),
            overlays: table.list("overlays"),
            kernel_args: checked("kernel_args", check::kernel_arg),
            packages: checked("packages", check::package),
            bundles: table.list("bundles"),
            vfio: table.table("vfio").map(|vfio| vfio.list("devices")).unwrap_or_default(),
            data_disks: table
                .table("storage")
                .map(|storage| storage.list("data"))
                .unwrap_or_default(),
            hugepages: hugepages(table),
            writable: writable(table),
            root_mode: table.choice("root_mode", &RootMode::ALL.map(|mode| (mode.as_str(), mode))),
            warm: table.choice("warm", &WarmPolicy::WORDS),
            vars: vars::read(document, table),
            checks: checks(table),
            thresholds: thresholds(table),
        }
    }
}

fn hugepages(table: &Table<'_>) -> Option<Located<Hugepages>> {
    let at = table.position("hugepages");
    let hint = "write hugepages = { size = \"1G\", count = 16 }; count = 0 removes inherited ones";
    let table = table.table("hugepages")?;
    let size = table.choice("size", &[("1G", PageSize::G1), ("2M", PageSize::M2)]);
    let count = table.integer("count", 0..=MAX_PAGES);
    let size = table.required("size", size, hint);
    let count = table.required("count", count, hint);
    Some(at.with(Hugepages { size: size?.value, count: count?.value }))
}

fn writable(table: &Table<'_>) -> Option<Located<ByteSize>> {
    let size = table.parsed::<ByteSize>("writable")?;
    if !WRITABLE.contains(&size.value) {
        let what = format!("{} is out of range", size.value);
        let hint =
            format!("use {} to {}: it is memory of the node", WRITABLE.start(), WRITABLE.end());
        table.fault_at(&size, what, hint);
        return None;
    }
    Some(size)
}

fn checks(table: &Table<'_>) -> Vec<Located<(String, CheckRule)>> {
    let Some(table) = table.table("checks") else { return Vec::new() };
    let words = [("on", CheckRule::On), ("warn", CheckRule::Warn), ("off", CheckRule::Off)];
    let read = CHECKS.into_iter();
    read.filter_map(|check| Some(table.choice(check, &words)?.map(|rule| (check.to_owned(), rule))))
        .collect()
}

fn thresholds(table: &Table<'_>) -> Vec<Located<(&'static str, i64)>> {
    let Some(table) = table.table("thresholds") else { return Vec::new() };
    let read = |Threshold { key, max, .. }: &Threshold| {
        Some(table.integer(key, 0..=*max)?.map(|value| (*key, value)))
    };
    THRESHOLDS.iter().filter_map(read).collect()
}
