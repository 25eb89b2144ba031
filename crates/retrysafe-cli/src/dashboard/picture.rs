//! How does one key's story look as a picture?
//!
//! Time goes to the right, one step per moment: what matters at three in the morning is the order. Attempts are bars from their begin to
//! their end, with their fence; everything else is a mark in its own row. Rows that have nothing are left out.

use super::shown::{ShownKey, ShownMoment};

/// Pixels between two moments, and from the left edge to the first one.
const STEP: usize = 96;
const LEFT: usize = 120;
const TOP: usize = 34;
const ROW: usize = 40;

/// The rows, from top to bottom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Row {
    Attempts,
    Phases,
    Effects,
    Lookups,
    Webhooks,
    Verdicts,
}

impl Row {
    const ALL: [Self; 6] = [
        Self::Attempts,
        Self::Phases,
        Self::Effects,
        Self::Lookups,
        Self::Webhooks,
        Self::Verdicts,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Phases => "phases",
            Self::Effects => "effects",
            Self::Lookups => "look-ups",
            Self::Webhooks => "webhooks",
            Self::Verdicts => "verdicts",
        }
    }

    fn of_moment(what: &str) -> Self {
        match what {
            "advanced" => Self::Phases,
            "looked_up" => Self::Lookups,
            "resolved" | "expired" => Self::Verdicts,
            _ => Self::Attempts,
        }
    }
}

/// A drawing, ready for its template.
pub(super) struct Picture {
    pub width: usize,
    pub height: usize,
    pub rows: Vec<PictureRow>,
    pub bars: Vec<PictureBar>,
    pub marks: Vec<PictureMark>,
}

pub(super) struct PictureRow {
    pub name: &'static str,
    pub y: usize,
}

/// An attempt.
pub(super) struct PictureBar {
    pub x: usize,
    pub width: usize,
    pub y: usize,
    pub fence: u64,
    /// How it ended, as a class of the style.
    pub end: String,
    /// Until when its owner may execute, while it does.
    pub lease_until: Option<String>,
}

/// A moment.
pub(super) struct PictureMark {
    pub x: usize,
    pub y: usize,
    pub label_y: usize,
    pub kind: String,
    /// What it is, in two words.
    pub word: String,
    pub title: String,
    pub time: String,
    /// The page that says more, if there is one.
    pub page: Option<String>,
}

/// What happened at one time, wherever it is written down.
struct Happening<'a> {
    at: &'a str,
    row: Row,
    kind: String,
    title: String,
    page: Option<String>,
    moment: Option<&'a ShownMoment>,
}

impl Picture {
    pub(super) fn of(key: &ShownKey) -> Self {
        let happenings = happenings(key);
        let is_drawn = |row: Row| {
            row == Row::Attempts || happenings.iter().any(|happening| happening.row == row)
        };
        let drawn: Vec<Row> = Row::ALL.into_iter().filter(|row| is_drawn(*row)).collect();
        let y =
            |row: Row| TOP + ROW * drawn.iter().position(|other| *other == row).unwrap_or_default();
        let x = |place: usize| LEFT + place * STEP;
        let label_y = TOP + drawn.len() * ROW;
        let mut bars: Vec<PictureBar> = Vec::new();
        let mut marks = Vec::new();
        for (place, happening) in happenings.into_iter().enumerate() {
            if let Some(moment) = happening.moment {
                lengthen(&mut bars, moment, x(place));
            }
            marks.push(PictureMark {
                x: x(place),
                y: y(happening.row),
                label_y,
                word: happening.kind.replace(['_', '-'], " "),
                kind: happening.kind,
                time: time_of_day(happening.at).to_owned(),
                title: happening.title,
                page: happening.page,
            });
        }
        if let Some(last) = bars.last_mut().filter(|last| last.end == "running") {
            last.width = x(marks.len()).saturating_sub(last.x);
            last.lease_until = key.lease_until.as_deref().map(|at| time_of_day(at).to_owned());
        }
        let rows = drawn.iter().map(|row| PictureRow { name: row.name(), y: y(*row) }).collect();
        Self { width: x(marks.len().max(1)) + STEP / 2, height: label_y + 34, rows, bars, marks }
    }
}

/// Begins the bar of an attempt, or draws it on to where the attempt goes on or ends.
fn lengthen(bars: &mut Vec<PictureBar>, moment: &ShownMoment, x: usize) {
    match moment.what.as_str() {
        "began" => bars.push(PictureBar {
            x,
            width: STEP / 3,
            y: TOP - 8,
            fence: moment.fence,
            end: "running".to_owned(),
            lease_until: None,
        }),
        "settled" | "doubted" | "advanced" => {
            if let Some(bar) = bars.iter_mut().rev().find(|bar| bar.fence == moment.fence) {
                bar.width = x.saturating_sub(bar.x).max(STEP / 3);
                if moment.what != "advanced" {
                    bar.end = settled_state(moment).unwrap_or("unknown").to_owned();
                }
            }
        }
        _ => {}
    }
}

fn settled_state(moment: &ShownMoment) -> Option<&str> {
    moment.more.get("state").and_then(|state| state.as_str())
}

/// Everything that happened, in order. Times are written in one form, so that their texts are in order, too; of two at one time the
/// record's own comes first.
fn happenings(key: &ShownKey) -> Vec<Happening<'_>> {
    let moments = key.timeline.iter().map(|moment| Happening {
        at: &moment.at,
        row: Row::of_moment(&moment.what),
        kind: match settled_state(moment) {
            Some(state) if moment.what == "settled" => state.to_owned(),
            Some(_) | None => moment.what.clone(),
        },
        title: format!(
            "{} {} (fence {}) {}",
            moment.at,
            moment.name(),
            moment.fence,
            moment.details()
        ),
        page: None,
        moment: Some(moment),
    });
    let effects = key.effects().iter().map(|effect| Happening {
        at: &effect.staged_at,
        row: Row::Effects,
        kind: format!("effect-{}", effect.state),
        title: format!(
            "{} effect {} ({}) was staged; it is {} now",
            effect.staged_at, effect.id, effect.kind, effect.state
        ),
        page: Some(format!("/outbox/{}", effect.id)),
        moment: None,
    });
    let events = key.events().iter().map(|event| Happening {
        at: &event.received_at,
        row: Row::Webhooks,
        kind: format!("event-{}", event.state),
        title: format!(
            "{} {} sent event {}: {}{}",
            event.received_at,
            event.provider,
            event.event_id,
            event.state,
            if event.is_owner_unclear() { ", perhaps about another caller's request" } else { "" }
        ),
        page: Some(format!("/inbox/{}", event.id)),
        moment: None,
    });
    let mut all: Vec<Happening<'_>> = moments.chain(effects).chain(events).collect();
    all.sort_by(|one, other| one.at.cmp(other.at));
    all
}

/// The time of day.
fn time_of_day(at: &str) -> &str {
    at.get(11..19).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(timeline: serde_json::Value, more: serde_json::Value) -> ShownKey {
        let mut key = json!({
            "id": "0", "state": "unknown", "method": "POST", "route": "/", "path": "/", "scope": "", "scope_hex": "",
            "key": "", "fence": 1, "attempts": 1, "created_at": "", "timeline": timeline,
        });
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(key).unwrap()
    }

    fn moment(second: u32, fence: u64, what: &str, state: Option<&str>) -> serde_json::Value {
        json!({"at": format!("2026-01-02T03:04:{second:02}.678Z"), "fence": fence, "what": what, "state": state})
    }

    #[test]
    fn an_attempt_is_a_bar_from_its_begin_to_its_end() {
        let story = json!([
            moment(1, 3, "began", None),
            moment(2, 3, "doubted", None),
            moment(3, 3, "looked_up", None),
            moment(4, 9, "resolved", Some("failed_retryable")),
            moment(5, 9, "began", None),
            moment(6, 9, "settled", Some("completed")),
        ]);
        let picture = Picture::of(&key(story, json!({})));
        let ends: Vec<&str> = picture.bars.iter().map(|bar| bar.end.as_str()).collect();
        assert_eq!(ends, ["unknown", "completed"]);
        assert!(picture.bars.iter().all(|bar| bar.width == STEP));
        let names: Vec<&str> = picture.rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["attempts", "look-ups", "verdicts"]);
        let rows: Vec<usize> = picture.marks.iter().map(|mark| (mark.y - TOP) / ROW).collect();
        assert_eq!(rows, [0, 0, 1, 2, 0, 0]);
        assert_eq!(picture.marks[0].time, "03:04:01");
        assert_eq!(picture.marks[2].word, "looked up");
        assert!(Picture::of(&key(json!([]), json!({}))).width > LEFT);
    }

    #[test]
    fn effects_and_events_stand_where_they_happened() {
        let story = json!([moment(1, 3, "began", None), moment(5, 3, "settled", Some("unknown"))]);
        let effect = json!({
            "id": 7, "state": "delivered", "kind": "receipt", "key": "", "failures": 0, "crashes": 0, "fence": 1,
            "staged_at": "2026-01-02T03:04:02.000Z",
        });
        let event = json!({
            "id": 8, "state": "applied", "provider": "stripe", "event_id": "evt_1", "copies": 1,
            "received_at": "2026-01-02T03:04:09.000Z",
        });
        let picture = Picture::of(&key(story, json!({"effects": [effect], "events": [event]})));
        let kinds: Vec<&str> = picture.marks.iter().map(|mark| mark.kind.as_str()).collect();
        assert_eq!(kinds, ["began", "effect-delivered", "unknown", "event-applied"]);
        assert_eq!(picture.marks[1].word, "effect delivered");
        let pages: Vec<Option<&str>> =
            picture.marks.iter().map(|mark| mark.page.as_deref()).collect();
        assert_eq!(pages, [None, Some("/outbox/7"), None, Some("/inbox/8")]);
        assert_eq!(picture.bars[0].width, 2 * STEP);
    }

    #[test]
    fn the_lease_of_a_running_attempt_is_told() {
        let story = json!([moment(1, 3, "began", None)]);
        let running = json!({"lease_until": "2026-01-02T03:05:01.000Z"});
        let picture = Picture::of(&key(story, running));
        assert_eq!(picture.bars[0].lease_until.as_deref(), Some("03:05:01"));
        assert_eq!(picture.bars[0].end, "running");
    }
}
