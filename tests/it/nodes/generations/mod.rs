//! What a node boots, and what it runs: orders for one boot, variables, groups, reloads,
//! generations. With the real `meshd serve`.

mod bootable;
mod rerender;
pub mod retention;
mod orders;
mod packages;
mod reload;
mod running;

use crate::world::{World, node::Script, stderr};

/// The words of the kernel command line.
fn args(script: &Script) -> Vec<String> {
    let kernel = script
        .0
        .lines()
        .find(|line| line.starts_with("kernel "))
        .unwrap_or_else(|| panic!("{}", script.0));
    kernel.split(' ').map(str::to_owned).collect()
}

/// Runs a verb that has to succeed.
fn done(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    stderr(&output)
}

/// Runs a verb that has to be refused, with words that the refusal must hold.
fn refused(world: &World, args: &[&str], words: &[&str]) {
    let output = world.meshd(args);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{word} in {message}");
    }
}
