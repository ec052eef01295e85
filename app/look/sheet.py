"""The style sheet, made of a palette. Widgets say what they are by dynamic properties (`kind`, `tone`, `scale`)."""

from __future__ import annotations

from collections.abc import Callable

from app.look.measures import (
    BODY_PX,
    CAPTION_PX,
    HEADING_PX,
    RADIUS_CARD,
    RADIUS_CONTROL,
    SCROLL_BAR,
    TITLE_PX,
)
from app.look.palette import Palette


def style_sheet(p: Palette, font_name: str, mono_name: str, px: Callable[[float], int]) -> str:
    """`px` gives a size of text as large as it is wanted."""
    return f"""
* {{ outline: none; }}
QWidget {{ color: {p.text}; font-size: {px(BODY_PX)}px; }}
QMainWindow, QDialog, #page {{ background: {p.ground}; }}
QToolTip {{ background: {p.text}; color: {p.ground}; border: none; padding: 4px 8px; font-size: {px(CAPTION_PX)}px; }}

QLabel {{ background: transparent; }}
QLabel[scale="caption"] {{ font-size: {px(CAPTION_PX)}px; }}
QLabel[scale="title"] {{ font-size: {px(TITLE_PX)}px; font-weight: 600; }}
QLabel[scale="heading"] {{ font-size: {px(HEADING_PX)}px; font-weight: 600; }}
QLabel[strong="true"] {{ font-weight: 600; }}
QLabel[mono="true"] {{ font-family: "{mono_name}"; }}
QLabel[tone="soft"] {{ color: {p.text_soft}; }}
QLabel[tone="faint"] {{ color: {p.text_faint}; }}
QLabel[tone="local"] {{ color: {p.local}; }}
QLabel[tone="peer"] {{ color: {p.peer}; }}
QLabel[tone="warning"] {{ color: {p.warning}; }}
QLabel[tone="danger"] {{ color: {p.danger}; }}

QFrame[kind="card"] {{ background: {p.surface}; border: 1px solid {p.border}; border-radius: {RADIUS_CARD}px; }}
QFrame[kind="card"][tone="input"] {{ border-color: {p.border_input}; }}
QFrame[kind="card"][tone="local"] {{ border-color: {p.local}; }}
QFrame[kind="card"][tone="peer"] {{ border-color: {p.peer}; }}
QFrame[kind="card"][tone="warning"] {{ background: {p.warning_soft}; border-color: {p.warning}; }}
QFrame[kind="card"][tone="danger"] {{ background: {p.danger_soft}; border-color: {p.danger}; }}
QAbstractButton[kind="row"] {{ background: transparent; border: 2px solid transparent;
    border-radius: {RADIUS_CONTROL}px; }}
QAbstractButton[kind="row"]:hover {{ background: {p.sunken}; }}
QAbstractButton[kind="row"][chosen="true"] {{ background: {p.hover}; }}
QAbstractButton[kind="row"]:focus {{ border-color: {p.local}; }}
QFrame[kind="line"] {{ background: {p.border}; border: none; min-height: 1px; max-height: 1px; }}
QFrame[kind="sunken"] {{ background: {p.sunken}; border: none; border-radius: {RADIUS_CARD}px; }}
QFrame[kind="sidebar"] {{ background: {p.sunken}; border: none; border-right: 1px solid {p.border}; }}
QFrame[kind="panel"] {{ background: {p.ground}; border: none; border-left: 1px solid {p.border}; }}
QFrame[kind="topbar"] {{ background: {p.ground}; border: none; border-bottom: 1px solid {p.border}; }}

QPushButton {{ background: {p.surface}; color: {p.text}; border: 1px solid {p.border_strong};
    border-radius: {RADIUS_CONTROL}px; padding: 5px 12px; min-height: 20px; font-weight: 600; }}
QPushButton:hover {{ background: {p.hover}; }}
QPushButton:pressed {{ background: {p.pressed}; }}
QPushButton:focus {{ border: 2px solid {p.local}; padding: 4px 11px; }}
QPushButton:disabled {{ color: {p.text_faint}; background: {p.sunken}; border-color: {p.border}; }}
QBalloonTip QPushButton {{ background: transparent; border: none; padding: 0; min-height: 0; }}
QPushButton[kind="primary"] {{ background: {p.local}; color: {p.on_local}; border-color: {p.local}; }}
QPushButton[kind="primary"]:hover {{ background: {p.local_hover}; border-color: {p.local_hover}; }}
QPushButton[kind="primary"]:focus {{ border: 2px solid {p.text}; }}
QPushButton[kind="primary"]:disabled {{ background: {p.hover}; color: {p.text_faint}; border-color: {p.border}; }}
QPushButton[kind="danger"] {{ background: {p.danger}; color: {p.on_danger}; border-color: {p.danger}; }}
QPushButton[kind="danger"]:hover {{ background: {p.danger_hover}; border-color: {p.danger_hover}; }}
QPushButton[kind="danger"]:focus {{ border: 2px solid {p.text}; }}
QPushButton[kind="quiet"] {{ background: transparent; border-color: transparent; color: {p.text_soft}; }}
QPushButton[kind="quiet"]:hover {{ background: {p.hover}; color: {p.text}; }}
QPushButton[kind="quiet"]:focus {{ border: 2px solid {p.local}; }}
QPushButton[kind="quiet"]:disabled {{ background: transparent; color: {p.text_faint}; }}
QPushButton[kind="link"] {{ background: transparent; border: 1px solid transparent; color: {p.local};
    padding: 1px 3px; text-align: left; }}
QPushButton[kind="link"]:hover {{ color: {p.local_hover}; text-decoration: underline; }}
QPushButton[kind="link"]:focus {{ border: 1px solid {p.local}; padding: 1px 3px; }}
QPushButton[kind="fold"] {{ background: transparent; border: 2px solid transparent; color: {p.text_soft};
    padding: 2px; font-weight: 400; text-align: left; }}
QPushButton[kind="fold"]:hover {{ color: {p.text}; }}
QPushButton[kind="fold"]:focus {{ border-color: {p.local}; }}
QPushButton[kind="icon"] {{ background: transparent; border: 1px solid transparent; padding: 4px; min-width: 22px;
    min-height: 22px; }}
QPushButton[kind="icon"]:hover, QPushButton[kind="icon"]:checked {{ background: {p.hover}; }}
QPushButton[kind="icon"]:focus {{ border: 2px solid {p.local}; padding: 3px; }}
QPushButton[kind="icon"][scale="small"] {{ padding: 2px; min-width: 16px; min-height: 16px; }}
QPushButton[kind="icon"][scale="small"]:focus {{ padding: 1px; }}
QPushButton[kind="icon"]::menu-indicator, QPushButton[kind="quiet"]::menu-indicator {{ image: none; width: 0; }}
QPushButton[kind="nav"] {{ background: transparent; border: 2px solid transparent; color: {p.text_soft};
    text-align: left; padding: 6px 10px; font-weight: 400; }}
QPushButton[kind="nav"]:hover {{ background: {p.hover}; color: {p.text}; }}
QPushButton[kind="nav"]:checked {{ background: {p.pressed}; color: {p.text}; font-weight: 600; }}
QPushButton[kind="nav"]:focus {{ border-color: {p.local}; }}
QPushButton[kind="tile"] {{ background: {p.surface}; border: 1px solid {p.border}; border-radius: {RADIUS_CARD}px;
    padding: 0; font-weight: 400; text-align: left; }}
QPushButton[kind="tile"]:hover {{ background: {p.hover}; border-color: {p.border_strong}; }}
QPushButton[kind="tile"]:focus {{ border: 2px solid {p.local}; padding: 0; }}
QPushButton[kind="chip"] {{ background: {p.surface}; border: 1px solid {p.border}; border-radius: 14px;
    padding: 3px 12px; font-weight: 400; color: {p.text_soft}; }}
QPushButton[kind="chip"]:hover {{ background: {p.hover}; color: {p.text}; }}
QPushButton[kind="chip"]:disabled {{ background: {p.sunken}; color: {p.text_faint}; }}
QPushButton[kind="chip"]:focus {{ border: 2px solid {p.local}; padding: 2px 11px; }}
QPushButton[kind="segment"] {{ background: transparent; border: 1px solid transparent; font-weight: 400;
    color: {p.text_soft}; padding: 3px 12px; min-height: 18px; }}
QPushButton[kind="segment"]:hover {{ color: {p.text}; }}
QPushButton[kind="segment"]:checked {{ background: {p.surface}; border-color: {p.border_strong}; color: {p.text};
    font-weight: 600; }}
QPushButton[kind="segment"]:disabled {{ color: {p.text_faint}; }}
QPushButton[kind="segment"]:checked:disabled {{ background: {p.sunken}; border-color: {p.border}; }}
QPushButton[kind="segment"]:focus {{ border: 1px solid {p.local}; }}

QLineEdit, QSpinBox, QDoubleSpinBox, QComboBox {{ min-height: 20px; }}
QLineEdit, QPlainTextEdit, QTextEdit, QSpinBox, QDoubleSpinBox, QComboBox {{ background: {p.surface};
    border: 1px solid {p.border_input}; border-radius: {RADIUS_CONTROL}px; padding: 5px 8px;
    selection-background-color: {p.selection}; selection-color: {p.text}; }}
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus, QComboBox:focus {{
    border: 2px solid {p.local}; padding: 4px 7px; }}
QLineEdit:disabled, QSpinBox:disabled, QComboBox:disabled {{ background: {p.sunken}; color: {p.text_faint};
    border-color: {p.border}; }}
QLineEdit[state="wrong"] {{ border: 2px solid {p.danger}; padding: 4px 7px; }}
QLineEdit[kind="search"] {{ background: {p.ground}; padding-left: 4px; }}
QPlainTextEdit[kind="bare"], QTextEdit[kind="bare"], QTextBrowser[kind="bare"] {{ background: transparent; border: none;
    padding: 0; }}
QPlainTextEdit[mono="true"] {{ font-family: "{mono_name}"; font-size: {px(CAPTION_PX + 1)}px; }}
QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button, QDoubleSpinBox::down-button {{ width: 0; }}
QComboBox {{ combobox-popup: 0; }}
QComboBox::drop-down {{ border: none; width: 24px; }}
QComboBox QAbstractItemView {{ background: {p.surface}; border: 1px solid {p.border_strong};
    border-radius: {RADIUS_CARD}px; padding: 4px; }}
QComboBox QAbstractItemView::item {{ min-height: 20px; padding: 4px 8px; border: none; border-radius: 4px; }}
QComboBox QAbstractItemView::item:selected {{ background: {p.hover}; color: {p.text}; border: none; }}
QComboBox QAbstractItemView::item:focus {{ border: none; }}

QCheckBox, QRadioButton {{ spacing: 8px; background: transparent; }}
QCheckBox::indicator, QRadioButton::indicator {{ width: 16px; height: 16px; border: 1px solid {p.text_faint};
    background: {p.surface}; }}
QCheckBox::indicator {{ border-radius: 4px; }}
QRadioButton::indicator {{ border-radius: 9px; }}
QCheckBox::indicator:checked {{ background: {p.local}; border-color: {p.local}; }}
QRadioButton::indicator:checked {{ background: {p.surface}; border: 5px solid {p.local}; width: 8px; height: 8px; }}
QCheckBox::indicator:focus, QRadioButton::indicator:focus {{ border-color: {p.local}; }}

QSlider::groove:horizontal {{ height: 4px; background: {p.border}; border-radius: 2px; }}
QSlider::sub-page:horizontal {{ background: {p.local}; border-radius: 2px; }}
QSlider::handle:horizontal {{ width: 14px; height: 14px; margin: -6px 0; border-radius: 8px; background: {p.surface};
    border: 1px solid {p.border_input}; }}
QSlider::handle:horizontal:focus {{ border: 2px solid {p.local}; }}

QProgressBar {{ background: {p.border}; border: none; border-radius: 3px; min-height: 6px; max-height: 6px; }}
QProgressBar::chunk {{ background: {p.local}; border-radius: 3px; }}
QProgressBar[tone="peer"]::chunk {{ background: {p.peer}; }}

QMenu {{ background: {p.surface}; border: 1px solid {p.border_strong}; padding: 4px; }}
QMenu[kind="floating"] {{ border-radius: {RADIUS_CARD}px; }}
QMenu::item {{ padding: 6px 24px 6px 12px; border-radius: 4px; }}
QMenu::item:selected {{ background: {p.hover}; }}
QMenu::item:disabled {{ color: {p.text_faint}; }}
QMenu::separator {{ height: 1px; background: {p.border}; margin: 4px 8px; }}
QMenu::icon {{ padding-left: 8px; }}

QScrollArea, QScrollArea > QWidget > QWidget#scrolled {{ background: transparent; border: none; }}
QScrollBar:vertical {{ background: transparent; width: {SCROLL_BAR}px; margin: 0; }}
QScrollBar:horizontal {{ background: transparent; height: {SCROLL_BAR}px; margin: 0; }}
QScrollBar::handle {{ background: {p.border_strong}; border-radius: 3px; margin: 2px; }}
QScrollBar::handle:vertical {{ min-height: 32px; }}
QScrollBar::handle:horizontal {{ min-width: 32px; }}
QScrollBar[tone="focus"]::handle {{ background: {p.local}; }}
QScrollBar::handle:hover {{ background: {p.text_faint}; }}
QScrollBar[state="still"]::handle, QScrollBar[state="still"]::handle:hover {{ background: transparent; }}
QScrollBar::add-line, QScrollBar::sub-line {{ width: 0; height: 0; }}
QScrollBar::add-page, QScrollBar::sub-page {{ background: transparent; }}

QListView, QTreeView, QTableView {{ background: transparent; border: none; alternate-background-color: {p.sunken};
    gridline-color: {p.border}; selection-background-color: {p.hover}; selection-color: {p.text}; }}
QListView::item, QTreeView::item, QTableView::item {{ padding: 4px 8px; border: none; }}
QListView::item:hover, QTreeView::item:hover {{ background: {p.hover}; }}
QListView::item:selected, QTreeView::item:selected, QTableView::item:selected {{ background: {p.hover};
    color: {p.text}; }}
QListView::item:focus, QTreeView::item:focus {{ border: 1px solid {p.local}; }}
QHeaderView {{ background: transparent; }}
QHeaderView::section {{ background: transparent; color: {p.text_faint}; border: none;
    border-bottom: 1px solid {p.border}; padding: 6px 11px; font-size: {px(CAPTION_PX)}px; font-weight: 600; }}
QSplitter::handle {{ background: {p.border}; }}
QSplitter::handle:horizontal {{ width: 1px; }}
"""
