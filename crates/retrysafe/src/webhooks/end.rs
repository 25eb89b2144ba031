//! How does an event stand, and what became of it?

/// How an event stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStanding {
    /// What it names was not found yet, or nobody knows its end yet.
    Waiting,
    /// It has decided something.
    Applied,
    /// What it says was known before.
    Agrees,
    /// It says the opposite of what was decided. Somebody must look.
    Contradicts,
    /// What it names was not found in its time.
    Unmatched,
    /// It says nothing that counts.
    Ignored,
    /// It cannot be read.
    Malformed,
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EventEnd {
    /// It waits, for this reason.
    Waits(String),
    /// It has decided.
    Applied(EventSubject),
    /// It says what was known.
    Agrees(EventSubject, &'static str),
    /// It says the opposite of what was decided.
    Contradicts(EventSubject, &'static str),
    /// By today's rules it says nothing.
    Ignored(String),
}

/// What an event was matched to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EventSubject {
    /// `record …` or `effect …`.
    pub(super) name: String,
    pub(super) fence: i64,
}

impl EventStanding {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Applied,
        Self::Agrees,
        Self::Contradicts,
        Self::Unmatched,
        Self::Ignored,
        Self::Malformed,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Applied => "applied",
            Self::Agrees => "agrees",
            Self::Contradicts => "contradicts",
            Self::Unmatched => "unmatched",
            Self::Ignored => "ignored",
            Self::Malformed => "malformed",
        }
    }

    /// The standing of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|standing| standing.name() == name)
    }

    /// The number that it is kept as.
    pub(super) fn code(self) -> i64 {
        let place = Self::ALL.iter().position(|standing| *standing == self);
        place.and_then(|place| i64::try_from(place).ok()).unwrap_or(0)
    }
}

impl EventEnd {
    pub(super) fn standing(&self) -> EventStanding {
        match self {
            Self::Waits(_) => EventStanding::Waiting,
            Self::Applied(_) => EventStanding::Applied,
            Self::Agrees(..) => EventStanding::Agrees,
            Self::Contradicts(..) => EventStanding::Contradicts,
            Self::Ignored(_) => EventStanding::Ignored,
        }
    }

    fn subject(&self) -> Option<&EventSubject> {
        match self {
            Self::Applied(subject) | Self::Agrees(subject, _) | Self::Contradicts(subject, _) => {
                Some(subject)
            }
            Self::Waits(_) | Self::Ignored(_) => None,
        }
    }

    pub(super) fn matched(&self) -> Option<&str> {
        self.subject().map(|subject| subject.name.as_str())
    }

    pub(super) fn fence(&self) -> Option<i64> {
        self.subject().map(|subject| subject.fence)
    }

    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Waits(why) | Self::Ignored(why) => Some(why),
            Self::Agrees(_, why) | Self::Contradicts(_, why) => Some(why),
            Self::Applied(_) => None,
        }
    }
}
