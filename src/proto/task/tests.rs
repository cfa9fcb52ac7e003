//! Tests of task messages: round trips and rejected values.

use super::*;
use crate::{FromAgent, MAX_MESSAGE, json_element_limit};
use proptest::prelude::*;

fn text(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn unusable_command_line_is_refused() {
    assert_eq!(check_argv(&text(&["./x", "", ":", "$(id)"])), Ok(()));
    for wrong in [&[][..], &[""], &["-x"], &["x", "a\0b"]] {
        assert!(check_argv(&text(wrong)).is_err(), "{wrong:?}");
    }
    assert!(check_argv(&vec!["x".to_owned(); MAX_ARGS + 1]).is_err());
    assert!(check_argv(&["x".repeat(MAX_ARG_BYTES + 1)]).is_err());
    assert!(check_mpi_argv(&text(&["./x", ":", "./y"])).is_err(), "mpiexec would run two programs");
}

#[test]
fn proxy_receives_only_known_options() {
    let options = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    assert!(HydraLaunch::new(1, options("usize", "-2")).is_ok());
    assert!(HydraLaunch::new(0, BTreeMap::new()).is_err());
    for (name, value) in
        [("launcher-exec", "x"), ("rmk", ""), ("rmk", "a b"), ("rmk", "/bin/sh"), ("proxy-id", "1")]
    {
        assert!(HydraLaunch::new(1, options(name, value)).is_err(), "{name} {value}");
    }
    let wire = r#"{"port":1,"options":{"launcher-exec":"/bin/sh"}}"#;
    assert!(serde_json::from_str::<HydraLaunch>(wire).is_err(), "a message is validated too");
}

#[test]
fn longest_output_piece_fits_into_a_message() {
    // Bytes that are no text, and text whose every character is written as six.
    for byte in [0xff, 1] {
        let output = Output {
            task: TaskId([0; 4]),
            stream: Stream::Err,
            at: u64::MAX,
            data: Piece::from_bytes(vec![byte; MAX_PIECE]),
        };
        let message = FromAgent::Output(output);
        let text = serde_json::to_string(&message).expect("plain data");
        assert!(text.len() < MAX_MESSAGE);
        assert_eq!(json_element_limit::read::<FromAgent>(text.as_bytes()), Ok(message));
    }
}

proptest! {
    #[test]
    fn output_piece_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let piece = Piece::from_bytes(bytes.clone());
        let wire = serde_json::to_string(&piece).expect("plain data");
        let back: Piece = serde_json::from_str(&wire).expect("valid JSON");
        prop_assert_eq!(back.into_bytes(), Some(bytes));
    }

    #[test]
    fn output_piece_with_junk_never_panics(hex in ".{0,40}") {
        let _ = Piece::Bytes { hex }.into_bytes();
    }
}
