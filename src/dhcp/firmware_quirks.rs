//! Firmware quirks: where firmware departs from the RFCs, and the workaround for each. The code
//! refers to them as `Quirk::<name>`.

/// A departure from the RFCs, or a requirement beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quirk {
    /// The user class is not a list of length-prefixed names.
    BareUserClass,
    /// The user class is such a list, and the client's name is not its first entry.
    ListedUserClass,
    /// The client loads its own program again and again.
    LoopsIntoItself,
    /// Option 97 is missing.
    NoUuid,
    /// Option 97 is not a type and 16 bytes.
    OddUuid,
    /// Texts end with a NUL, or are read up to one.
    ReadsCStrings,
    /// Option 93 is missing; the text of option 60 contains its value.
    ArchInClass,
    /// Option 93 is missing.
    NoArch,
    /// Option 93 holds several values.
    SeveralArchs,
    /// Option 60 is HTTPClient, but option 93 is a TFTP architecture.
    HttpByClassOnly,
    /// The client accepts a URL only with option 60 `HTTPClient`.
    UrlNeedsClass,
    /// The client accepts a reply without an address only with option 60 `PXEClient`.
    ProxyNeedsClass,
    /// Without option 43 the client searches boot servers by broadcast and multicast before it
    /// loads the file.
    LooksForBootServers,
    /// Any option 43 opens the boot menu of PXE.
    Option43OpensMenu,
    /// The client reads the BOOTP header, but no options.
    HeaderOnly,
    /// The client drops replies that are shorter than a BOOTP packet.
    NoShortReply,
    /// The client waits seconds for the offer of a proxy.
    WaitsForProxy,
    /// The client sends to port 4011 from there or from port 68, and expects the reply there.
    AsksProxyFromAnyPort,
}

/// Each quirk with the firmware in which it was seen and its workaround. `tests::quirks` tests each
/// one.
pub const QUIRKS: [(Quirk, &str, &str); 18] = [
    (Quirk::BareUserClass, "iPXE, all versions", "option 77 `iPXE` is read as one name"),
    (
        Quirk::ListedUserClass,
        "iPXE behind relays that add a class; Windows",
        "each name of the list of RFC 3004 is read",
    ),
    (
        Quirk::LoopsIntoItself,
        "iPXE",
        "by its user class it gets the script, whatever its option 93 says",
    ),
    (Quirk::NoUuid, "ROMs of old NICs, U-Boot", "the machine is known by its MAC address"),
    (
        Quirk::OddUuid,
        "ROMs that send 16 bytes without a type",
        "it is no identity, and goes back as it came",
    ),
    (
        Quirk::ReadsCStrings,
        "firmware for which dnsmasq ends options 66 and 67 with a NUL",
        "options 66 and 67 end with a NUL; NULs behind classes are ignored",
    ),
    (
        Quirk::ArchInClass,
        "HTTP clients of some boards, U-Boot",
        "`:Arch:00016:`, `:Arch:0000b:` or `U-Boot.armv8` of option 60 is read",
    ),
    (
        Quirk::NoArch,
        "PXE 1.0 ROMs",
        "a bare `PXEClient` is a BIOS machine; other classes get no loader",
    ),
    (
        Quirk::SeveralArchs,
        "firmware that lists what it can run (RFC 4578, 2.1)",
        "the first one with a row is taken",
    ),
    (
        Quirk::HttpByClassOnly,
        "UEFI that keeps option 93 = 7 in HTTP boot",
        "option 60 decides: a URL",
    ),
    (
        Quirk::UrlNeedsClass,
        "OVMF and all of EDK II",
        "option 60 `HTTPClient` goes back with the URL",
    ),
    (Quirk::ProxyNeedsClass, "OVMF, iPXE", "option 60 `PXEClient` goes back from a proxy"),
    (
        Quirk::LooksForBootServers,
        "BIOS ROMs of Intel and Broadcom",
        "option 43 = 06 01 08 ff from a proxy",
    ),
    (
        Quirk::Option43OpensMenu,
        "EDK II before 2019 on servers of several makers",
        "no option 43 for UEFI",
    ),
    (
        Quirk::HeaderOnly,
        "U-Boot",
        "file and server are also in the header, and in a proxy's offer too",
    ),
    (
        Quirk::NoShortReply,
        "BOOTP ROMs and relays (RFC 1542, 2.1)",
        "answers are padded to 300 bytes",
    ),
    (
        Quirk::WaitsForProxy,
        "iPXE (3 to 5 s, build of 2019)",
        "option 175 says no-pxedhcp where meshd leases",
    ),
    (
        Quirk::AsksProxyFromAnyPort,
        "OVMF (from 4011), iPXE (from 68)",
        "the answer goes to the port that asked",
    ),
];
