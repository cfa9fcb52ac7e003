//! System calls that no replica may use: those that mount, load code into the kernel, create
//! namespaces, reach keys, set clocks, or have a long record of faults. All others are allowed, so
//! that programs of later libraries run.

use meshd_types::Architecture;
use serde_json::{Value, json};

const DENIED: [&str; 61] = [
    "acct",
    "add_key",
    "adjtimex",
    "bpf",
    "clock_adjtime",
    "clock_settime",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kcmp",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "name_to_handle_at",
    "nfsservctl",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "swapoff",
    "swapon",
    "_sysctl",
    "sysfs",
    "syslog",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "vhangup",
];
/// Flags of clone(2) that create namespaces: `CLONE_NEWNS`, `NEWCGROUP`, `NEWUTS`, `NEWIPC`,
/// `NEWUSER`, `NEWPID`, `NEWNET`.
const NAMESPACE_FLAGS: [u32; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// Families of sockets that reach beyond the network of the replica: `AF_VSOCK`, `AF_ALG`.
const FAMILIES: [u32; 2] = [40, 38];
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Returns the filter for programs of this architecture. Programs of another architecture, such as
/// 32-bit programs, are killed.
pub fn profile(architecture: Architecture) -> Value {
    let name = match architecture {
        Architecture::X86_64 => "SCMP_ARCH_X86_64",
        Architecture::Aarch64 => "SCMP_ARCH_AARCH64",
        Architecture::Riscv64 => "SCMP_ARCH_RISCV64",
    };
    let mut rules = vec![
        json!({ "names": DENIED.as_slice(), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM }),
        // Its flags are in memory, where a filter does not see them: libraries use clone(2) then.
        json!({ "names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS }),
    ];
    rules.extend(NAMESPACE_FLAGS.map(|flag| {
        let flag_is_set =
            json!({ "index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ" });
        json!({
            "names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [flag_is_set],
        })
    }));
    rules.extend(FAMILIES.map(|family| {
        let is_family = json!({ "index": 0, "value": family, "op": "SCMP_CMP_EQ" });
        json!({
            "names": ["socket"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM, "args": [is_family],
        })
    }));
    json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": [name], "syscalls": rules })
}
