//! What the overlays of a node must contain, and must leave alone, so that it boots.

/// The requirements of one system. Paths of `folders` to `accounts` are relative to the
/// root.
pub(super) struct Requirements {
    /// Packages that bring `/sbin/init` and the service manager; one of them suffices. Empty for a
    /// system whose images contain both.
    pub init_packages: &'static [&'static str],
    /// Files that the boot, the agent and the boot interface need, and whether each is a program.
    pub needed: &'static [(&'static str, bool)],
    /// Hint for a missing file.
    pub absent_hint: &'static str,
    /// Texts that a file must contain in a line that is not a comment.
    pub needed_lines: &'static [(&'static str, &'static str)],
    /// Folders that stay folders: programs and packages are found below them.
    pub folders: &'static [&'static str],
    /// Folders that the kernel or the service manager mounts over: a file below one is never seen.
    pub mounted: &'static [&'static str],
    /// Links of packages. A folder in place of one makes the package manager fail.
    pub package_links: &'static [(&'static str, &'static str)],
    /// Programs of packages without which nothing starts. The C library's loader is in the facts of
    /// the architecture.
    pub programs: &'static [&'static str],
    /// Files in which the first program locks the root account.
    pub accounts: &'static [&'static str],
}
