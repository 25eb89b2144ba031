//! Which promises are judged?
//!
//! The numbered invariants of the project that a history of records, executions and answers can
//! break. Those about bytes on sockets, SQL or files are tested where those live.

use std::fmt;

macro_rules! invariants {
    ($($name:ident $statement:literal),* $(,)?) => {
        /// A promise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Invariant { $(#[doc = $statement] $name),* }

        impl Invariant {
            /// All that are judged.
            #[cfg(test)]
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Its number.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }

            /// What it says.
            pub const fn statement(self) -> &'static str {
                match self { $(Self::$name => $statement),* }
            }
        }
    };
}

invariants! {
    S1 "at most one effect per generation, but for what policy, handler or operator released",
    S2 "no fence is executed twice, and no two executions of a generation overlap",
    S3 "only a gateway that was granted a fence in its present life sends with it",
    S4 "a first answer leaves only after it is durable",
    S5 "all final answers of a generation are the same",
    S6 "every final answer is that of an execution of this very request",
    S7 "another request under a live key is refused, and only then",
    S8 "no scope sees another scope's execution",
    S9 "no caller leads from unknown to execution",
    S10 "the end of a lease alone leads to no execution",
    S11 "fences and versions rise for ever; who lost its fence changes nothing",
    S12 "a late owner is heard while nobody has decided, and refused afterwards; proof is never contradicted",
    S13 "a verdict rests on evidence about the very attempt that it decides",
    S14 "no execution after a begin that failed, but where the route says so, and never beside one that this process knows of",
    S15 "an ambiguous settle is repeated as it was, and nothing is executed for it",
    S16 "an answer that broke off is never kept",
    S17 "an answer too large to keep ends the request all the same",
    S19 "a disconnect stops neither execution nor settling",
    S20 "a panic leaves the outcome unknown",
    S21 "every end of an execution leads to the declared state",
    S22 "no settled record ends before its time, and no other one ever",
    S23 "a replay is of a generation that lived when it was asked for",
    S24 "only the store's clock ends leases",
    S25 "after a fail-over nothing is granted until whoever was executing has ended",
    S26 "the cache serves nothing that the store would not",
    S30 "what is decided stays decided",
    S38 "a client uses one key per call, stops when told to, and does not take doubt for failure",
    S28 "the rows of a phase are there whole, once, and in the commit of its recovery point",
    F1 "a call of a flow takes effect at most once, but for what an operator released",
    F2 "a recovery point moves forward, one phase at a time, and by its owner alone",
    F3 "a first-sent mark ends with the call's result, its setter's word that nothing was sent, or evidence",
    F4 "no call is sent but by the owner, under its mark, on a live lease",
    F5 "no other bytes are sent under one key",
    F6 "nobody goes on with a call past what its provider remembers",
    F7 "a flow that holds work is neither reaped nor freed before it is completed",
    F8 "a completed flow has run each of its phases, and a call's result is that of its effect",
    F9 "a flow is run by those alone who know its version",
    O1 "an effect happens once at the most",
    O2 "no effect that was committed is lost, and none that was not is sent",
    O3 "what is delivered has happened",
    O4 "what is dead or cancelled has not happened, and will not",
    O5 "an effect is unknown only if it may have been sent and must not be sent again",
    O6 "effects of a lane are sent and happen one after the other, in their order",
    O7 "an effect's fence rises with every claim and decision, and who lost it changes nothing",
    O8 "an effect is sent only under a claim and its mark, on a live lease, while its receiver remembers the key",
    O9 "a sent mark ends with its setter's word that nothing was sent, or with evidence",
    O10 "an effect's lease ends without a word only if its worker died, stood still or did not reach the store",
    R1 "what a provider was told to be kept decides the attempt that it is about, if nobody else has",
    L1 "a record of a dead owner leaves in_progress",
    L2 "a patient client gets its answer",
    L3 "every unknown is decided or on a person's list",
    L4 "a refusal says when to come back, not later than the lease",
    L8 "a process that says that nothing is open has nothing open, and begins nothing more",
}

impl Invariant {
    /// Whether a store that forgets acknowledged writes must break it. The other ones hold even
    /// then.
    pub const fn rests_on_memory(self) -> bool {
        match self {
            Self::S1
            | Self::S2
            | Self::S4
            | Self::S5
            | Self::S6
            | Self::S7
            | Self::S9
            | Self::S12
            | Self::S13
            | Self::S15
            | Self::S17
            | Self::S22
            | Self::S23
            | Self::S30 => true,
            Self::S3
            | Self::S8
            | Self::S10
            | Self::S11
            | Self::S14
            | Self::S16
            | Self::S19
            | Self::S20
            | Self::S21
            | Self::S24
            | Self::S25
            | Self::S26
            | Self::S28
            | Self::F1
            | Self::F2
            | Self::F3
            | Self::F4
            | Self::F5
            | Self::F6
            | Self::F7
            | Self::F8
            | Self::F9
            | Self::O1
            | Self::O2
            | Self::O3
            | Self::O4
            | Self::O5
            | Self::O6
            | Self::O7
            | Self::O8
            | Self::O9
            | Self::O10
            | Self::R1
            | Self::S38
            | Self::L1
            | Self::L2
            | Self::L3
            | Self::L4
            | Self::L8 => false,
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.statement())
    }
}
