//! Validation of single values of `site.toml`.
use super::reader::brief;
use meshd_types::ParseError;

/// Maximum length of a Unix socket path: 107 bytes (unix(7)), less one for the suffix of the
/// temporary name.
pub(super) const MAX_SOCKET_PATH: usize = 106;
/// Maximum length of an interface name in bytes (IFNAMSIZ without the final NUL).
const MAX_INTERFACE: usize = 15;
/// Maximum length of an SSH public key in bytes; a 16384-bit RSA key takes about 2800.
const MAX_SSH_KEY: usize = 8192;

/// Kernel arguments that meshd sets. Other values would break the boot chain or its security.
const OWN_ARGS: [&str; 10] =
    ["apkovl", "init", "rdinit", "modloop", "initrd", "alpine_repo", "ip", "BOOTIF", "panic", "--"];
/// Kernel arguments with which the machine starts another system than the overlay, or stops in its
/// initramfs.
const BREAKING_ARGS: [&str; 21] = [
    "root",
    "rootfstype",
    "rootflags",
    "root_size",
    "bootstrap_usr_merged",
    "resume",
    "resume_offset",
    "aoe",
    "nfsroot",
    "nfsaddrs",
    "nbd",
    "cryptroot",
    "overlaytmpfs",
    "ovl_dev",
    "pkgs",
    "init_args",
    "noinitrd",
    "single",
    "s",
    "S",
    "1",
];
/// Permitted besides letters and digits. Neither iPXE nor the kernel interprets them.
const ARG_MARKS: &str = "._-+,=:/@%~*!()[]<>^";

const SSH_KEY_TYPES: [&str; 7] = [
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
];

/// Returns an error that quotes the text, unless it is `sound`.
fn check(sound: bool, text: &str, is_what: &str, hint: &str) -> Result<(), ParseError> {
    if sound { Ok(()) } else { Err(ParseError::of_text(text, is_what, hint)) }
}

/// Checks the name of a site, which is also a DNS name: letters, digits, `-` and `.`.
pub(super) fn name(text: &str) -> Result<(), ParseError> {
    let plain = |c: u8| c.is_ascii_alphanumeric();
    let sound = text.len() <= 63
        && text.bytes().next().is_some_and(plain)
        && text.bytes().last().is_some_and(plain)
        && text.bytes().all(|c| plain(c) || c == b'-' || c == b'.')
        && !text.contains("..");
    check(sound, text, "is not a valid name", "use 1 to 63 letters, digits, `-` and `.`")
}

pub(super) fn interface(text: &str) -> Result<(), ParseError> {
    let sound = (1..=MAX_INTERFACE).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_graphic() && c != b'/' && c != b':')
        && text != "."
        && text != "..";
    check(sound, text, "cannot be a network interface", "see `ip link` for their names")
}

/// Checks a kernel argument of a profile or an operator.
pub fn kernel_arg(text: &str) -> Result<(), ParseError> {
    let shown = brief(text);
    let key = text.split('=').next().unwrap_or(text);
    if text.is_empty() {
        return Err(ParseError::new("an empty kernel argument", "remove it"));
    }
    if text.chars().any(char::is_whitespace) {
        return Err(ParseError::new(
            format!("`{shown}` contains a space"),
            "write one list element per argument",
        ));
    }
    if let Some(invalid) =
        text.chars().find(|c| !c.is_ascii_alphanumeric() && !ARG_MARKS.contains(*c))
    {
        let hint = format!("use letters, digits and {ARG_MARKS}");
        return Err(ParseError::new(format!("`{shown}` contains {invalid:?}"), hint));
    }
    if is_own_arg(text) {
        return Err(ParseError::new(format!("`{key}` is set by meshd itself"), "remove it"));
    }
    if breaks_boot(text) {
        return Err(ParseError::new(
            format!("`{key}` keeps the machine from starting its overlay"),
            "remove it",
        ));
    }
    Ok(())
}

/// Returns whether meshd sets a kernel argument itself: for the loader, for any kind of image, or
/// for the boot chain.
pub fn is_own_arg(arg: &str) -> bool {
    let name = arg.split('=').next().unwrap_or(arg);
    // Alpine's initramfs takes `noNAME` for an end of NAME.
    [Some(name), name.strip_prefix("no")].into_iter().flatten().any(|name| OWN_ARGS.contains(&name))
}

/// Returns whether a kernel argument keeps a machine from starting its overlay.
pub fn breaks_boot(arg: &str) -> bool {
    BREAKING_ARGS.contains(&arg.split('=').next().unwrap_or(arg))
}

/// Checks a package name. The repository of an image has one version of each package.
pub(super) fn package(text: &str) -> Result<(), ParseError> {
    let sound = text.len() <= 128
        && text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"+._-".contains(&c));
    check(sound, text, "is not a package name", "write it without version or repository: htop")
}

/// Checks an SSH public key. Errors never quote the text, which may be a private key.
pub(super) fn ssh_key(text: &str) -> Result<(), ParseError> {
    if text.contains("PRIVATE KEY") {
        let hint = "write the public one, and make a new pair if this file was shared";
        return Err(ParseError::new("is a private key", hint));
    }
    let hint = "paste the one line of a .pub file: ssh-ed25519 AAAA... comment";
    if text.len() > MAX_SSH_KEY || text.chars().any(char::is_control) {
        let message = format!("is not one line of at most {MAX_SSH_KEY} bytes");
        return Err(ParseError::new(message, hint));
    }
    let mut words = text.split(' ').filter(|word| !word.is_empty());
    let kind = words.next().is_some_and(|kind| SSH_KEY_TYPES.contains(&kind));
    let base64 = |c: u8| c.is_ascii_alphanumeric() || b"+/=".contains(&c);
    let body =
        words.next().is_some_and(|body| body.starts_with("AAAA") && body.bytes().all(base64));
    if kind && body { Ok(()) } else { Err(ParseError::new("is not an SSH public key", hint)) }
}

/// Checks a value of `console=`: `ttyS0`, `ttyS0,115200`, `tty0`.
pub(super) fn console(text: &str) -> Result<(), ParseError> {
    let (device, options) = text.split_once(',').unwrap_or((text, "0"));
    let plain = |part: &str| {
        !part.is_empty() && part.len() <= 16 && part.bytes().all(|c| c.is_ascii_alphanumeric())
    };
    let sound = plain(device) && plain(options);
    check(sound, text, "is not a console", "write tty0 or ttyS0,115200")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_argument_that_would_break_the_script_is_refused() {
        for text in [
            "",
            "a b",
            "init=/bin/sh",
            "apkovl=x",
            "x=\"y\"",
            "a\tb",
            "${net0/mac}",
            "#x",
            "a\\",
            "a'b",
            "--",
            "root=/dev/sda1",
            "single",
            "1",
            "noapkovl",
            "noip",
            "resume=/dev/sda2",
            "aoe=e0.0",
            "root_size=1M",
        ] {
            assert!(kernel_arg(text).is_err(), "{text}");
        }
        for text in [
            "quiet",
            "nomodeset",
            "noresume",
            "intel_iommu=on",
            "hugepages=16",
            "vfio-pci.ids=10de:1eb8,10de:10f8",
            "initcall_debug",
        ] {
            assert_eq!(kernel_arg(text), Ok(()));
        }
    }

    #[test]
    fn private_key_is_refused_without_being_shown() {
        let error = ssh_key("-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0").expect_err("private");
        assert!(!error.to_string().contains("c2Vj"), "{error}");
        assert_eq!(ssh_key("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB me@desk"), Ok(()));
        for text in ["", "me@desk", "ssh-ed25519", "ssh-ed25519 AAAA\nssh-rsa AAAA", "ssh-dss AAAA"]
        {
            assert!(ssh_key(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_invalid_for_linux_or_dns_are_refused() {
        for text in ["", "a/b", "averylonginterfacename", "br 0", "..", "eth0:1"] {
            assert!(interface(text).is_err(), "{text}");
        }
        for text in ["", "-a", "a.", "a..b", "a b", "rack_a", "ü"] {
            assert!(name(text).is_err(), "{text}");
        }
        for (text, sound) in
            [("ttyS0,115200", true), ("tty0", true), ("", false), ("a b", false), ("x,", false)]
        {
            assert_eq!(console(text).is_ok(), sound, "{text}");
        }
        for (text, sound) in
            [("htop", true), ("g++", true), ("k3s=1.2-r0", false), ("a b", false), ("!x", false)]
        {
            assert_eq!(package(text).is_ok(), sound, "{text}");
        }
    }
}
