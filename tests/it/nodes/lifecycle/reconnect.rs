//! Ten thousand agents have lost meshd, and it comes back: the agents' own minds, with a clock that
//! jumps from one deadline to the next.

use meshd_agent::link_state::{Effect, Event, LinkStateMachine, Now, Validity};
use meshd_proto::{EnrolResponse, FromCentral, VERSION, Welcome};
use meshd_types::Timestamp;
use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

const AGENTS: usize = 10_000;

/// One agent and the randomness that it is given.
struct Agent {
    mind: LinkStateMachine,
    random: u32,
}

fn at(timer: Duration) -> Now {
    Now { timer, wall: Timestamp::from_millis(1_800_000_000_000).after(timer) }
}

impl Agent {
    /// Linked since the beginning of time.
    fn new(number: u32) -> Self {
        let day = EnrolResponse { life_s: 7 * 86_400, certificate_pem: String::new() };
        let life = Validity::from_response(&day, at(Duration::ZERO).wall);
        let mind = LinkStateMachine::new("00000001".parse().unwrap(), false, Some(life));
        let mut agent = Agent { mind, random: number };
        assert_eq!(agent.on(Duration::ZERO, Event::Timer), [Effect::OpenLink]);
        agent.link(Duration::ZERO);
        agent
    }

    /// Numbers that look random and are the same in every run (Numerical Recipes, `ranqd1`).
    fn on(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.mind.handle(at(now), self.random >> 16, event)
    }

    fn link(&mut self, now: Duration) {
        self.on(now, Event::Connected);
        let welcome = Welcome { version: VERSION, heartbeat_s: 30, now: None, logs: false };
        self.on(now, Event::Message(FromCentral::Welcome(welcome)));
        assert_eq!(self.mind.state(), "linked");
    }
}

/// When each agent is back, measured from the return of a central node that was away for so long.
fn homecoming(away: Duration) -> Vec<Duration> {
    let mut agents: Vec<Agent> =
        (0..AGENTS).map(|number| Agent::new(u32::try_from(number).unwrap())).collect();
    let mut due = BinaryHeap::new();
    // The process dies: every connection breaks in the same instant.
    let lost = Duration::from_secs(10);
    for (number, agent) in agents.iter_mut().enumerate() {
        agent.on(lost, Event::ConnectionLost("reset".to_owned()));
        due.push(Reverse((agent.mind.deadline().expect("it tries again"), number)));
    }
    let mut back = Vec::new();
    while let Some(Reverse((now, number))) = due.pop() {
        let agent = &mut agents[number];
        let effects = agent.on(now, Event::Timer);
        if effects.contains(&Effect::OpenLink) && now >= lost + away {
            agent.link(now);
            back.push(now - lost - away);
            continue;
        }
        if effects.contains(&Effect::OpenLink) {
            agent.on(now, Event::ConnectionLost("refused".to_owned()));
        }
        due.push(Reverse((agent.mind.deadline().expect("it tries again"), number)));
    }
    back
}

#[test]
fn agents_reconnect_within_40_seconds_spread_over_time() {
    // The pauses reach their limit within minutes: an hour is like a day.
    for away in [1, 60, 3600] {
        let back = homecoming(Duration::from_secs(away));
        assert_eq!(back.len(), AGENTS);
        let last = back.iter().max().copied().unwrap_or_default();
        assert!(last < Duration::from_secs(40), "{last:?} after {away} s");
        let mut seconds = [0usize; 60];
        back.iter().for_each(|at| seconds[usize::try_from(at.as_secs()).unwrap()] += 1);
        let most = seconds.into_iter().max().unwrap_or_default();
        // A blip of a second finds all of them in their first pause, which is two and a half
        // seconds wide.
        let bound = if away == 1 { AGENTS / 2 } else { AGENTS / 10 };
        assert!(most <= bound, "{most} in one second after {away} s");
    }
}
