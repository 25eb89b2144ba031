//! Where is an operation broken off, and what must hold then?

use payment_provider::Mode;

/// A named place of the operation, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Point {
    /// The reservation is committed, the flow has not begun.
    RequestBegun,
    /// The flow's input is committed; its first phase has its transaction.
    RideBegun,
    RideToCommit,
    /// The ride is committed.
    ChargeToPrepare,
    /// "About to call" is committed.
    ChargeToSend,
    /// The provider has read the request.
    ChargeSent,
    /// The provider has charged the card.
    ChargeMade,
    /// The answer is here, and not committed.
    ChargeAnswered,
    /// The answer of the provider is committed; the last phase has its transaction.
    ReceiptBegun,
    ReceiptToCommit,
    /// The receipt and the answer are committed; the caller knows nothing yet.
    AnswerCommitted,
}

pub(crate) const POINTS: [Point; 11] = [
    Point::RequestBegun,
    Point::RideBegun,
    Point::RideToCommit,
    Point::ChargeToPrepare,
    Point::ChargeToSend,
    Point::ChargeSent,
    Point::ChargeMade,
    Point::ChargeAnswered,
    Point::ReceiptBegun,
    Point::ReceiptToCommit,
    Point::AnswerCommitted,
];

/// What is visible of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) rides: i64,
    pub(crate) charges: u64,
    pub(crate) receipts: i64,
}

impl Point {
    /// As the programs say it, and the table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RequestBegun => "request begun",
            Self::RideBegun => "ride begun",
            Self::RideToCommit => "ride to commit",
            Self::ChargeToPrepare => "charge to prepare",
            Self::ChargeToSend => "charge to send",
            Self::ChargeSent => "charge sent",
            Self::ChargeMade => "charge made",
            Self::ChargeAnswered => "charge answered",
            Self::ReceiptBegun => "receipt begun",
            Self::ReceiptToCommit => "receipt to commit",
            Self::AnswerCommitted => "answer committed",
        }
    }

    /// How the provider holds a request there; none if the program itself is there.
    pub(crate) fn held_by_provider(self) -> Option<Mode> {
        match self {
            Self::ChargeSent => Some(Mode::HoldBeforeCharging),
            Self::ChargeMade => Some(Mode::HoldAfterCharging),
            Self::RequestBegun
            | Self::RideBegun
            | Self::RideToCommit
            | Self::ChargeToPrepare
            | Self::ChargeToSend
            | Self::ChargeAnswered
            | Self::ReceiptBegun
            | Self::ReceiptToCommit
            | Self::AnswerCommitted => None,
        }
    }

    /// What is visible when an operation has come here and no further.
    pub(crate) fn visible(self) -> Visible {
        Visible {
            rides: i64::from(self > Self::RideToCommit),
            charges: u64::from(self > Self::ChargeSent),
            receipts: i64::from(self > Self::ReceiptToCommit),
        }
    }

    /// Whether a charge may be on its way to a provider that takes no key.
    pub(crate) fn may_have_sent(self) -> bool {
        (Self::ChargeToSend..=Self::ChargeAnswered).contains(&self)
    }

    /// The first point to which the next attempt comes inside the flow; none if it is answered from the record.
    pub(crate) fn resumes_at(self) -> Option<Self> {
        match self {
            Self::RequestBegun | Self::RideBegun | Self::RideToCommit => Some(Self::RideBegun),
            Self::ChargeToPrepare
            | Self::ChargeToSend
            | Self::ChargeSent
            | Self::ChargeMade
            | Self::ChargeAnswered => Some(Self::ChargeToPrepare),
            Self::ReceiptBegun | Self::ReceiptToCommit => Some(Self::ReceiptBegun),
            Self::AnswerCommitted => None,
        }
    }
}
